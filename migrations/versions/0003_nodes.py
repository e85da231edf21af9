"""Nodes: full probes of machines, and the failure domains that they stand in.

Revision: 0003, after 0002.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

JSON = sa.JSON().with_variant(postgresql.JSONB(astext_type=sa.Text()), "postgresql")


def upgrade() -> None:
    op.create_table(
        "node_measurements",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("host", sa.String(), nullable=False),
        sa.Column("sku", sa.String(), nullable=False),
        sa.Column("devices", sa.Integer(), nullable=False),
        sa.Column("benchmark", sa.String(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("at_ns", sa.BigInteger(), nullable=False),
        sa.Column("repetitions_s", JSON, nullable=False),
        sa.Column("ok", sa.Boolean(), nullable=False),
        sa.Column("error", sa.Text(), nullable=False),
        sa.Column("bytes", sa.Double(), nullable=False),
        sa.Column("relative", sa.Double(), nullable=True),
        sa.Column("event_id", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_node_measurements")),
    )
    with op.batch_alter_table("node_measurements", schema=None) as batch_op:
        batch_op.create_index(
            batch_op.f("ix_node_measurements_host_benchmark_at_ns"), ["host", "benchmark", "at_ns"], unique=True
        )
        batch_op.create_index(
            batch_op.f("ix_node_measurements_sku_benchmark_version_devices"),
            ["sku", "benchmark", "version", "devices"],
            unique=False,
        )

    with op.batch_alter_table("hosts", schema=None) as batch_op:
        batch_op.add_column(sa.Column("probe_asked_ns", sa.BigInteger(), server_default="0", nullable=False))
        batch_op.add_column(sa.Column("probed_ns", sa.BigInteger(), server_default="0", nullable=False))

    with op.batch_alter_table("nodes", schema=None) as batch_op:
        batch_op.add_column(sa.Column("domains", JSON, server_default="{}", nullable=False))


def downgrade() -> None:
    with op.batch_alter_table("nodes", schema=None) as batch_op:
        batch_op.drop_column("domains")

    with op.batch_alter_table("hosts", schema=None) as batch_op:
        batch_op.drop_column("probed_ns")
        batch_op.drop_column("probe_asked_ns")

    with op.batch_alter_table("node_measurements", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_node_measurements_sku_benchmark_version_devices"))
        batch_op.drop_index(batch_op.f("ix_node_measurements_host_benchmark_at_ns"))

    op.drop_table("node_measurements")
