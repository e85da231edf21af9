"""All tables of the first release.

Revision: 0001, the first.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "attempts",
        sa.Column("attempt_id", sa.String(), nullable=False),
        sa.Column("job_id", sa.String(), nullable=False),
        sa.Column("run_name", sa.String(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("lease_id", sa.String(), nullable=False),
        sa.Column("started_ns", sa.BigInteger(), nullable=False),
        sa.Column("resumed_ns", sa.BigInteger(), nullable=False),
        sa.Column("ended_ns", sa.BigInteger(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("checkpoint", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("started_event", sa.BigInteger(), nullable=False),
        sa.Column("resumed_event", sa.BigInteger(), nullable=False),
        sa.Column("ended_event", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("attempt_id", name=op.f("pk_attempts")),
    )
    op.create_index("ix_attempts_job_id_run_name_number", "attempts", ["job_id", "run_name", "number"], unique=False)

    op.create_table(
        "checkpoints",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("attempt_id", sa.String(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("at_ns", sa.BigInteger(), nullable=False),
        sa.Column(
            "metrics", sa.JSON().with_variant(postgresql.JSONB(astext_type=sa.Text()), "postgresql"), nullable=False
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_checkpoints")),
        sa.UniqueConstraint("attempt_id", "path", name=op.f("uq_checkpoints_attempt_id_path")),
    )
    op.create_table(
        "devices",
        sa.Column("uuid", sa.String(), nullable=False),
        sa.Column("host", sa.String(), nullable=False),
        sa.Column("node_id", sa.String(), nullable=False),
        sa.Column("device_index", sa.Integer(), nullable=False),
        sa.Column("serial", sa.String(), nullable=False),
        sa.Column("pci_bus_id", sa.String(), nullable=False),
        sa.Column("product", sa.String(), nullable=False),
        sa.Column("memory_bytes", sa.BigInteger(), nullable=False),
        sa.Column("power_cap_w", sa.Double(), nullable=False),
        sa.Column("driver_version", sa.String(), nullable=False),
        sa.Column("mig_profile", sa.String(), nullable=False),
        sa.Column("sku", sa.String(), nullable=False),
        sa.Column("first_seen_ns", sa.BigInteger(), nullable=False),
        sa.Column("seen_ns", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.String(length=24), nullable=False),
        sa.Column("since_ns", sa.BigInteger(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("clean_probes", sa.Integer(), nullable=False),
        sa.Column("bad_findings", sa.Integer(), nullable=False),
        sa.Column("before_unknown", sa.String(length=24), nullable=True),
        sa.Column("cause_id", sa.BigInteger(), nullable=False),
        sa.Column("held", sa.Boolean(), nullable=False),
        sa.Column("score", sa.Double(), nullable=True),
        sa.Column("noise", sa.Double(), nullable=True),
        sa.Column("scored_ns", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("uuid", name=op.f("pk_devices")),
    )
    op.create_index("ix_devices_host", "devices", ["host"], unique=False)
    op.create_index("ix_devices_node_id", "devices", ["node_id"], unique=False)
    op.create_index("ix_devices_sku", "devices", ["sku"], unique=False)

    op.create_table(
        "events",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("at_ns", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.String(length=24), nullable=False),
        sa.Column("entity", sa.String(), nullable=False),
        sa.Column("summary", sa.Text(), nullable=False),
        sa.Column("cause_id", sa.BigInteger(), nullable=False),
        sa.Column(
            "body", sa.JSON().with_variant(postgresql.JSONB(astext_type=sa.Text()), "postgresql"), nullable=False
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_events")),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_events_at_ns", "events", ["at_ns"], unique=False)
    op.create_index("ix_events_cause_id", "events", ["cause_id"], unique=False)
    op.create_index("ix_events_entity_id", "events", ["entity", "id"], unique=False)

    op.create_table(
        "findings",
        sa.Column("uuid", sa.String(), nullable=False),
        sa.Column("rule_id", sa.String(), nullable=False),
        sa.Column("rule_version", sa.Integer(), nullable=False),
        sa.Column("advice", sa.String(length=24), nullable=False),
        sa.Column("first_ns", sa.BigInteger(), nullable=False),
        sa.Column("last_ns", sa.BigInteger(), nullable=False),
        sa.Column("repeats", sa.Integer(), nullable=False),
        sa.Column("basis_id", sa.BigInteger(), nullable=False),
        sa.Column("event_id", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("uuid", "rule_id", name=op.f("pk_findings")),
    )
    op.create_table(
        "hosts",
        sa.Column("host", sa.String(), nullable=False),
        sa.Column("address", sa.String(), nullable=False),
        sa.Column("boot_id", sa.String(), nullable=False),
        sa.Column("simulated", sa.Boolean(), nullable=False),
        sa.Column("node_id", sa.String(), nullable=False),
        sa.Column("first_seen_ns", sa.BigInteger(), nullable=False),
        sa.Column("seen_ns", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("host", name=op.f("pk_hosts")),
    )
    op.create_table(
        "jobs",
        sa.Column("job_id", sa.String(), nullable=False),
        sa.Column("run_name", sa.String(), nullable=False),
        sa.Column("state", sa.String(length=24), nullable=False),
        sa.Column("since_ns", sa.BigInteger(), nullable=False),
        sa.Column("created_ns", sa.BigInteger(), nullable=False),
        sa.Column("updated_ns", sa.BigInteger(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("hint", sa.Text(), nullable=False),
        sa.Column("storage_path", sa.Text(), nullable=False),
        sa.Column("event_id", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "run_name", name=op.f("pk_jobs")),
    )
    op.create_table(
        "leases",
        sa.Column("lease_id", sa.String(), nullable=False),
        sa.Column("attempt_id", sa.String(), nullable=False),
        sa.Column("job_id", sa.String(), nullable=False),
        sa.Column("run_name", sa.String(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("max_spread", sa.Double(), nullable=False),
        sa.Column("spread", sa.Double(), nullable=False),
        sa.Column("step_time", sa.Double(), nullable=False),
        sa.Column("plan_revision", sa.BigInteger(), nullable=False),
        sa.Column("plan_reason", sa.Text(), nullable=False),
        sa.Column("held", sa.Boolean(), nullable=False),
        sa.Column("since_ns", sa.BigInteger(), nullable=False),
        sa.Column("ended_ns", sa.BigInteger(), nullable=False),
        sa.Column("end_reason", sa.Text(), nullable=False),
        sa.Column("moving_cause", sa.BigInteger(), nullable=False),
        sa.Column("event_id", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("lease_id", name=op.f("pk_leases")),
    )
    op.create_index("ix_leases_attempt_id", "leases", ["attempt_id"], unique=False)
    op.create_index("ix_leases_held", "leases", ["held"], unique=False)
    op.create_index("ix_leases_job_id_run_name", "leases", ["job_id", "run_name"], unique=False)

    op.create_table(
        "measurements",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("uuid", sa.String(), nullable=False),
        sa.Column("benchmark", sa.String(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("at_ns", sa.BigInteger(), nullable=False),
        sa.Column("sku", sa.String(), nullable=False),
        sa.Column(
            "repetitions_s",
            sa.JSON().with_variant(postgresql.JSONB(astext_type=sa.Text()), "postgresql"),
            nullable=False,
        ),
        sa.Column("ok", sa.Boolean(), nullable=False),
        sa.Column("error", sa.Text(), nullable=False),
        sa.Column("event_id", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_measurements")),
        sa.UniqueConstraint(
            "uuid", "benchmark", "version", "at_ns", name=op.f("uq_measurements_uuid_benchmark_version_at_ns")
        ),
    )
    op.create_index(
        "ix_measurements_sku_benchmark_version_at_ns",
        "measurements",
        ["sku", "benchmark", "version", "at_ns"],
        unique=False,
    )

    op.create_table(
        "meta",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("rolled_until_ns", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_meta")),
    )
    op.create_table(
        "nodes",
        sa.Column("node_id", sa.String(), nullable=False),
        sa.Column("host", sa.String(), nullable=False),
        sa.Column("address", sa.String(), nullable=False),
        sa.Column("state", sa.String(length=24), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("since_ns", sa.BigInteger(), nullable=False),
        sa.Column("joined_ns", sa.BigInteger(), nullable=False),
        sa.Column("alive", sa.Boolean(), nullable=False),
        sa.Column("alive_ns", sa.BigInteger(), nullable=False),
        sa.Column("reported_ns", sa.BigInteger(), nullable=False),
        sa.Column("event_id", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("node_id", name=op.f("pk_nodes")),
    )
    op.create_index("ix_nodes_host", "nodes", ["host"], unique=False)

    op.create_table(
        "reports_seen",
        sa.Column("node_id", sa.String(), nullable=False),
        sa.Column("boot", sa.String(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("at_ns", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("node_id", "boot", name=op.f("pk_reports_seen")),
    )
    op.create_index("ix_reports_seen_at_ns", "reports_seen", ["at_ns"], unique=False)

    op.create_table(
        "samples",
        sa.Column("uuid", sa.String(), nullable=False),
        sa.Column("at_ns", sa.BigInteger(), nullable=False),
        sa.Column("sm_clock_mhz", sa.BigInteger(), nullable=True),
        sa.Column("temperature_c", sa.BigInteger(), nullable=True),
        sa.Column("power_w", sa.Double(), nullable=True),
        sa.Column("memory_used_bytes", sa.BigInteger(), nullable=True),
        sa.Column("utilisation_pct", sa.BigInteger(), nullable=True),
        sa.Column("ecc_corrected", sa.BigInteger(), nullable=True),
        sa.Column("ecc_uncorrected", sa.BigInteger(), nullable=True),
        sa.Column("remap_pending", sa.Boolean(), nullable=True),
        sa.Column("remap_failed", sa.Boolean(), nullable=True),
        sa.Column("throttle_reasons", sa.BigInteger(), nullable=True),
        sa.Column("process_count", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("uuid", "at_ns", name=op.f("pk_samples")),
    )
    op.create_index("ix_samples_at_ns", "samples", ["at_ns"], unique=False)

    op.create_table(
        "samples_rolled",
        sa.Column("uuid", sa.String(), nullable=False),
        sa.Column("minute_ns", sa.BigInteger(), nullable=False),
        sa.Column("count", sa.Integer(), nullable=False),
        sa.Column("clock_min_mhz", sa.Double(), nullable=True),
        sa.Column("clock_avg_mhz", sa.Double(), nullable=True),
        sa.Column("clock_max_mhz", sa.Double(), nullable=True),
        sa.Column("temperature_min_c", sa.Double(), nullable=True),
        sa.Column("temperature_avg_c", sa.Double(), nullable=True),
        sa.Column("temperature_max_c", sa.Double(), nullable=True),
        sa.Column("power_min_w", sa.Double(), nullable=True),
        sa.Column("power_avg_w", sa.Double(), nullable=True),
        sa.Column("power_max_w", sa.Double(), nullable=True),
        sa.Column("utilisation_min_pct", sa.Double(), nullable=True),
        sa.Column("utilisation_avg_pct", sa.Double(), nullable=True),
        sa.Column("utilisation_max_pct", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("uuid", "minute_ns", name=op.f("pk_samples_rolled")),
    )
    op.create_index("ix_samples_rolled_minute_ns", "samples_rolled", ["minute_ns"], unique=False)

    op.create_table(
        "scores",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("uuid", sa.String(), nullable=False),
        sa.Column("at_ns", sa.BigInteger(), nullable=False),
        sa.Column("benchmark", sa.String(), nullable=False),
        sa.Column("score", sa.Double(), nullable=False),
        sa.Column("noise", sa.Double(), nullable=False),
        sa.Column("samples", sa.Integer(), nullable=False),
        sa.Column("cohort", sa.String(), nullable=False),
        sa.Column("cohort_size", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_scores")),
    )
    op.create_index("ix_scores_uuid_at_ns", "scores", ["uuid", "at_ns"], unique=False)

    op.create_table(
        "sessions",
        sa.Column("session_id", sa.String(), nullable=False),
        sa.Column("first_ns", sa.BigInteger(), nullable=False),
        sa.Column("at_ns", sa.BigInteger(), nullable=False),
        sa.Column("turns", sa.BigInteger(), nullable=False),
        sa.Column("tokens", sa.BigInteger(), nullable=False),
        sa.Column("resumes", sa.BigInteger(), nullable=False),
        sa.Column("replica", sa.String(), nullable=False),
        sa.Column("device", sa.String(), nullable=False),
        sa.Column("state", sa.String(length=24), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("event_id", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("session_id", name=op.f("pk_sessions")),
    )
    op.create_index("ix_sessions_at_ns", "sessions", ["at_ns"], unique=False)

    op.create_table(
        "tokens",
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("created_ns", sa.BigInteger(), nullable=False),
        sa.Column("revoked_ns", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("sha256", name=op.f("pk_tokens")),
    )
    op.create_table(
        "xids",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("uuid", sa.String(), nullable=False),
        sa.Column("code", sa.Integer(), nullable=False),
        sa.Column("at_ns", sa.BigInteger(), nullable=False),
        sa.Column("source", sa.String(length=24), nullable=False),
        sa.Column("event_id", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_xids")),
        sa.UniqueConstraint("uuid", "code", "at_ns", "source", name=op.f("uq_xids_uuid_code_at_ns_source")),
    )
    op.create_table(
        "attempt_ranks",
        sa.Column("attempt_id", sa.String(), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("node_id", sa.String(), nullable=False),
        sa.Column("device_index", sa.Integer(), nullable=False),
        sa.Column("pid", sa.BigInteger(), nullable=False),
        sa.Column("uuid", sa.String(), nullable=False),
        sa.Column("host", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(
            ["attempt_id"], ["attempts.attempt_id"], name=op.f("fk_attempt_ranks_attempt_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("attempt_id", "rank", name=op.f("pk_attempt_ranks")),
    )
    op.create_table(
        "lease_devices",
        sa.Column("lease_id", sa.String(), nullable=False),
        sa.Column("uuid", sa.String(), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("held", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(
            ["lease_id"], ["leases.lease_id"], name=op.f("fk_lease_devices_lease_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("lease_id", "uuid", name=op.f("pk_lease_devices")),
    )
    op.create_index(
        "uq_lease_devices_held",
        "lease_devices",
        ["uuid"],
        unique=True,
        sqlite_where=sa.text("held"),
        postgresql_where=sa.text("held"),
    )
    op.execute("INSERT INTO meta (id, revision, rolled_until_ns) VALUES (1, 0, 0)")


def downgrade() -> None:
    op.drop_index("uq_lease_devices_held", table_name="lease_devices")

    op.drop_table("lease_devices")
    op.drop_table("attempt_ranks")
    op.drop_table("xids")
    op.drop_table("tokens")
    op.drop_index("ix_sessions_at_ns", table_name="sessions")

    op.drop_table("sessions")
    op.drop_index("ix_scores_uuid_at_ns", table_name="scores")

    op.drop_table("scores")
    op.drop_index("ix_samples_rolled_minute_ns", table_name="samples_rolled")

    op.drop_table("samples_rolled")
    op.drop_index("ix_samples_at_ns", table_name="samples")

    op.drop_table("samples")
    op.drop_index("ix_reports_seen_at_ns", table_name="reports_seen")

    op.drop_table("reports_seen")
    op.drop_index("ix_nodes_host", table_name="nodes")

    op.drop_table("nodes")
    op.drop_table("meta")
    op.drop_index("ix_measurements_sku_benchmark_version_at_ns", table_name="measurements")

    op.drop_table("measurements")
    op.drop_index("ix_leases_job_id_run_name", table_name="leases")
    op.drop_index("ix_leases_held", table_name="leases")
    op.drop_index("ix_leases_attempt_id", table_name="leases")

    op.drop_table("leases")
    op.drop_table("jobs")
    op.drop_table("hosts")
    op.drop_table("findings")
    op.drop_index("ix_events_entity_id", table_name="events")
    op.drop_index("ix_events_cause_id", table_name="events")
    op.drop_index("ix_events_at_ns", table_name="events")

    op.drop_table("events")
    op.drop_index("ix_devices_sku", table_name="devices")
    op.drop_index("ix_devices_node_id", table_name="devices")
    op.drop_index("ix_devices_host", table_name="devices")

    op.drop_table("devices")
    op.drop_table("checkpoints")
    op.drop_index("ix_attempts_job_id_run_name_number", table_name="attempts")

    op.drop_table("attempts")
