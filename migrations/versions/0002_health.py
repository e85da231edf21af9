"""Health: verdicts with their stimuli, repairs, alerts, links, cordons, and scores by class of work.

Revision: 0002, after 0001.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

JSON = sa.JSON().with_variant(postgresql.JSONB(astext_type=sa.Text()), "postgresql")


def upgrade() -> None:
    op.create_table(
        "alert_targets",
        sa.Column("target", sa.String(), nullable=False),
        sa.Column("acknowledged_id", sa.BigInteger(), nullable=False),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("next_ns", sa.BigInteger(), nullable=False),
        sa.Column("error", sa.Text(), nullable=False),
        sa.Column("seen_ns", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("target", name=op.f("pk_alert_targets")),
    )
    op.create_table(
        "alerts",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("at_ns", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.String(length=24), nullable=False),
        sa.Column("entity", sa.String(), nullable=False),
        sa.Column("summary", sa.Text(), nullable=False),
        sa.Column("event_id", sa.BigInteger(), nullable=False),
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("body", JSON, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_alerts")),
        sqlite_autoincrement=True,
    )
    with op.batch_alter_table("alerts", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_alerts_at_ns"), ["at_ns"], unique=False)
        batch_op.create_index(batch_op.f("ix_alerts_key_at_ns"), ["key", "at_ns"], unique=False)

    op.create_table(
        "device_scores",
        sa.Column("uuid", sa.String(), nullable=False),
        sa.Column("workload", sa.String(length=24), nullable=False),
        sa.Column("benchmark", sa.String(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("score", sa.Double(), nullable=False),
        sa.Column("noise", sa.Double(), nullable=False),
        sa.Column("mad", sa.Double(), nullable=True),
        sa.Column("n", sa.Integer(), nullable=False),
        sa.Column("repeatability", sa.Double(), nullable=True),
        sa.Column("drift", sa.Double(), nullable=True),
        sa.Column("scored_ns", sa.BigInteger(), nullable=False),
        sa.Column("baseline_s", sa.Double(), nullable=True),
        sa.Column("baseline_sigma", sa.Double(), nullable=True),
        sa.Column("baseline_n", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("uuid", "workload", name=op.f("pk_device_scores")),
    )
    op.create_table(
        "links",
        sa.Column("host", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("kind", sa.String(length=24), nullable=False),
        sa.Column("at_ns", sa.BigInteger(), nullable=False),
        sa.Column("up", sa.Boolean(), nullable=False),
        sa.Column("since_ns", sa.BigInteger(), nullable=False),
        sa.Column("rate_gbps", sa.Double(), nullable=True),
        sa.Column("link_downed", sa.BigInteger(), nullable=True),
        sa.Column("errors", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("host", "name", name=op.f("pk_links")),
    )
    op.create_table(
        "repairs",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("serial", sa.String(), nullable=False),
        sa.Column("uuid", sa.String(), nullable=False),
        sa.Column("action", sa.String(length=24), nullable=False),
        sa.Column("code", sa.String(), nullable=False),
        sa.Column("at_ns", sa.BigInteger(), nullable=False),
        sa.Column("ended_ns", sa.BigInteger(), nullable=False),
        sa.Column("ok", sa.Boolean(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("who", sa.String(), nullable=False),
        sa.Column("event_id", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_repairs")),
    )
    with op.batch_alter_table("repairs", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_repairs_serial_id"), ["serial", "id"], unique=False)
        batch_op.create_index(batch_op.f("ix_repairs_uuid_id"), ["uuid", "id"], unique=False)

    op.create_table(
        "sightings",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("uuid", sa.String(), nullable=False),
        sa.Column("host", sa.String(), nullable=False),
        sa.Column("code_or_rule", sa.String(), nullable=False),
        sa.Column("job_id", sa.String(), nullable=False),
        sa.Column("at_ns", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_sightings")),
    )
    with op.batch_alter_table("sightings", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_sightings_at_ns"), ["at_ns"], unique=False)
        batch_op.create_index(batch_op.f("ix_sightings_job_id_at_ns"), ["job_id", "at_ns"], unique=False)
        batch_op.create_index(batch_op.f("ix_sightings_uuid_at_ns"), ["uuid", "at_ns"], unique=False)

    op.create_table(
        "stimuli",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("uuid", sa.String(), nullable=False),
        sa.Column("at_ns", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("body", JSON, nullable=False),
        sa.Column("event_id", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_stimuli")),
    )
    with op.batch_alter_table("stimuli", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_stimuli_uuid_id"), ["uuid", "id"], unique=False)

    op.create_table(
        "verdicts",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("uuid", sa.String(), nullable=False),
        sa.Column("host", sa.String(), nullable=False),
        sa.Column("cohort", sa.String(), nullable=False),
        sa.Column("rule_id", sa.String(), nullable=False),
        sa.Column("rule_version", sa.Integer(), nullable=False),
        sa.Column("advice", sa.String(length=24), nullable=False),
        sa.Column("mode", sa.String(length=24), nullable=False),
        sa.Column("automatic", sa.Boolean(), nullable=False),
        sa.Column("from_state", sa.String(length=24), nullable=False),
        sa.Column("to_state", sa.String(length=24), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("evidence", JSON, nullable=False),
        sa.Column("at_ns", sa.BigInteger(), nullable=False),
        sa.Column("event_id", sa.BigInteger(), nullable=False),
        sa.Column("label", sa.Boolean(), nullable=True),
        sa.Column("label_by", sa.String(), nullable=False),
        sa.Column("label_ns", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_verdicts")),
    )
    with op.batch_alter_table("verdicts", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_verdicts_at_ns"), ["at_ns"], unique=False)
        batch_op.create_index(batch_op.f("ix_verdicts_rule_id_mode"), ["rule_id", "mode"], unique=False)
        batch_op.create_index(batch_op.f("ix_verdicts_uuid_rule_id_id"), ["uuid", "rule_id", "id"], unique=False)

    with op.batch_alter_table("devices", schema=None) as batch_op:
        batch_op.add_column(sa.Column("bad_ns", sa.BigInteger(), server_default="0", nullable=False))
        batch_op.add_column(sa.Column("pardoned_ns", sa.BigInteger(), server_default="0", nullable=False))
        batch_op.add_column(sa.Column("cordoned_ns", sa.BigInteger(), server_default="0", nullable=False))
        batch_op.add_column(sa.Column("cordon_reason", sa.Text(), server_default="", nullable=False))
        batch_op.add_column(sa.Column("cordon_by", sa.String(), server_default="", nullable=False))

    with op.batch_alter_table("hosts", schema=None) as batch_op:
        batch_op.add_column(sa.Column("nvswitch", sa.Boolean(), server_default=sa.false(), nullable=False))
        batch_op.add_column(sa.Column("cordoned_ns", sa.BigInteger(), server_default="0", nullable=False))
        batch_op.add_column(sa.Column("cordon_reason", sa.Text(), server_default="", nullable=False))
        batch_op.add_column(sa.Column("cordon_by", sa.String(), server_default="", nullable=False))
        batch_op.add_column(sa.Column("cordon_event", sa.BigInteger(), server_default="0", nullable=False))
        batch_op.add_column(sa.Column("drain_deadline_ns", sa.BigInteger(), server_default="0", nullable=False))
        batch_op.add_column(sa.Column("drained_ns", sa.BigInteger(), server_default="0", nullable=False))
        batch_op.add_column(sa.Column("agent", JSON, nullable=True))
        batch_op.add_column(sa.Column("agent_ns", sa.BigInteger(), server_default="0", nullable=False))

    with op.batch_alter_table("measurements", schema=None) as batch_op:
        batch_op.add_column(sa.Column("workload", sa.String(length=24), server_default="compute", nullable=False))
        batch_op.add_column(sa.Column("conditions", JSON, server_default="{}", nullable=False))
        batch_op.create_index(batch_op.f("ix_measurements_uuid_at_ns"), ["uuid", "at_ns"], unique=False)

    with op.batch_alter_table("samples", schema=None) as batch_op:
        batch_op.add_column(sa.Column("recovery_action", sa.BigInteger(), nullable=True))
        batch_op.add_column(sa.Column("sram_threshold", sa.Boolean(), nullable=True))
        batch_op.add_column(sa.Column("pcie_gen", sa.BigInteger(), nullable=True))
        batch_op.add_column(sa.Column("pcie_width", sa.BigInteger(), nullable=True))
        batch_op.add_column(sa.Column("pcie_gen_max", sa.BigInteger(), nullable=True))
        batch_op.add_column(sa.Column("pcie_width_max", sa.BigInteger(), nullable=True))
        batch_op.add_column(sa.Column("throttle_ns", sa.BigInteger(), nullable=True))

    with op.batch_alter_table("scores", schema=None) as batch_op:
        batch_op.add_column(sa.Column("workload", sa.String(length=24), server_default="compute", nullable=False))
        batch_op.add_column(sa.Column("drift", sa.Double(), nullable=True))

    with op.batch_alter_table("xids", schema=None) as batch_op:
        batch_op.add_column(sa.Column("boot", sa.String(), server_default="", nullable=False))
        batch_op.add_column(sa.Column("detail", sa.Text(), server_default="", nullable=False))


def downgrade() -> None:
    with op.batch_alter_table("xids", schema=None) as batch_op:
        batch_op.drop_column("detail")
        batch_op.drop_column("boot")

    with op.batch_alter_table("scores", schema=None) as batch_op:
        batch_op.drop_column("drift")
        batch_op.drop_column("workload")

    with op.batch_alter_table("samples", schema=None) as batch_op:
        batch_op.drop_column("throttle_ns")
        batch_op.drop_column("pcie_width_max")
        batch_op.drop_column("pcie_gen_max")
        batch_op.drop_column("pcie_width")
        batch_op.drop_column("pcie_gen")
        batch_op.drop_column("sram_threshold")
        batch_op.drop_column("recovery_action")

    with op.batch_alter_table("measurements", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_measurements_uuid_at_ns"))
        batch_op.drop_column("conditions")
        batch_op.drop_column("workload")

    with op.batch_alter_table("hosts", schema=None) as batch_op:
        batch_op.drop_column("agent_ns")
        batch_op.drop_column("agent")
        batch_op.drop_column("drained_ns")
        batch_op.drop_column("drain_deadline_ns")
        batch_op.drop_column("cordon_event")
        batch_op.drop_column("cordon_by")
        batch_op.drop_column("cordon_reason")
        batch_op.drop_column("cordoned_ns")
        batch_op.drop_column("nvswitch")

    with op.batch_alter_table("devices", schema=None) as batch_op:
        batch_op.drop_column("cordon_by")
        batch_op.drop_column("cordon_reason")
        batch_op.drop_column("cordoned_ns")
        batch_op.drop_column("pardoned_ns")
        batch_op.drop_column("bad_ns")

    with op.batch_alter_table("verdicts", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_verdicts_uuid_rule_id_id"))
        batch_op.drop_index(batch_op.f("ix_verdicts_rule_id_mode"))
        batch_op.drop_index(batch_op.f("ix_verdicts_at_ns"))

    op.drop_table("verdicts")
    with op.batch_alter_table("stimuli", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_stimuli_uuid_id"))

    op.drop_table("stimuli")
    with op.batch_alter_table("sightings", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_sightings_uuid_at_ns"))
        batch_op.drop_index(batch_op.f("ix_sightings_job_id_at_ns"))
        batch_op.drop_index(batch_op.f("ix_sightings_at_ns"))

    op.drop_table("sightings")
    with op.batch_alter_table("repairs", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_repairs_uuid_id"))
        batch_op.drop_index(batch_op.f("ix_repairs_serial_id"))

    op.drop_table("repairs")
    op.drop_table("links")
    op.drop_table("device_scores")
    with op.batch_alter_table("alerts", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_alerts_key_at_ns"))
        batch_op.drop_index(batch_op.f("ix_alerts_at_ns"))

    op.drop_table("alerts")
    op.drop_table("alert_targets")
