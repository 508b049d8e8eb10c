"""Where the data goes: one key per destination, of which exactly one is given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import BeforeValidator, Field, ValidationInfo, field_serializer, field_validator, model_validator

from penstock.config.model import ConfigModel, OneOf, PathOrUrl, is_url, resolve_place
from penstock.config.modes import ModesConfig, ModesSetting
from penstock.config.s3 import AWS_PACKAGE, S3Config
from penstock.config.upkeep import UpkeepConfig
from penstock.model.mode import TableModes

SQLITE_PACKAGE = "org.xerial:sqlite-jdbc:3.50.3.0"
"""The driver for `jdbc:sqlite:`, which is small and needs no server."""
_SQLITE = "jdbc:sqlite:"


class DeltaCatalogConfig(ConfigModel):
    """Names in a catalog of Spark's, so that SQL finds the tables as `<catalog>.<schema>.<table>`."""

    name: str = Field(default="spark_catalog", pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    """Spark's own by default: Hive's metastore with `spark.sql.catalogImplementation: hive` in `spark.conf`, and
    otherwise what this process forgets when it ends. Another one, Unity's say, is set up in `spark.conf`."""
    schema_name: str | None = Field(default=None, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    """One schema for all tables; each has that of the source if left out."""


class DeltaConfig(ConfigModel):
    """Delta tables, at `<path>/<schema>/<table>`."""

    path: PathOrUrl = Field(min_length=1)
    """A folder, local or mounted, or `s3://bucket/folder`."""
    s3: S3Config = S3Config()
    """How the bucket is reached, if the path is in one."""
    catalog: DeltaCatalogConfig | None = None
    """Registers the tables in a catalog too, `{}` in Spark's own; none by default: a path is enough to read them."""
    cdc_columns: bool = True
    """Whether rows of `current` tables also carry _CHANGE_TYPE, _LSN and _TIMESTAMP. On: they cost little and answer
    most questions. Tables that keep the past always do. To be chosen before tables are copied: one that was made
    otherwise has to be resynced."""
    modes: ModesSetting = ModesConfig()
    """What tables keep: a mode for all (current, history, scd2), or `default` and exceptions in `tables`."""
    upkeep: UpkeepConfig = UpkeepConfig()


def _is_bucket(place: str | None) -> bool:
    return place is not None and place.startswith(("s3://", "s3a://"))


def _as_text(value: object) -> object:
    """Turn YAML's booleans and numbers into what Iceberg reads; users need not quote them."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


class CatalogProperties(ConfigModel):
    """What every kind of catalog takes besides its own settings."""

    properties: dict[str, Annotated[str, BeforeValidator(_as_text)]] = Field(default_factory=dict, repr=False)
    """Iceberg's own properties of the catalog, credentials among them; they win over ours."""

    @field_serializer("properties", when_used="json")
    def _hide(self, properties: dict[str, str]) -> dict[str, str]:
        return dict.fromkeys(properties, "**********")


class HadoopCatalogConfig(CatalogProperties):
    """The warehouse's folders are the catalog: nothing else is needed, on one machine."""


class JdbcCatalogConfig(CatalogProperties):
    """A database keeps which version of a table is the present one: safe for writers on several machines."""

    uri: str | None = Field(default=None, min_length=1)
    """The database; a SQLite file in the warehouse if left out."""
    driver_package: str | None = Field(default=None, pattern=r"^[^:\s]+:[^:\s]+:[^:\s]+$")
    """The Maven coordinates of the database's driver; SQLite's is known."""

    @model_validator(mode="after")
    def _check_driver(self) -> JdbcCatalogConfig:
        if self.driver_package is None and not (self.uri or _SQLITE).startswith(_SQLITE):
            raise ValueError("driver_package is needed with this uri, e.g. org.postgresql:postgresql:42.7.8")
        return self


class RestCatalogConfig(CatalogProperties):
    """A server keeps the catalog."""

    uri: str = Field(min_length=1)
    """Where it answers, e.g. http://localhost:8181."""


class IcebergCatalogConfig(OneOf):
    """The chosen catalog."""

    hadoop: HadoopCatalogConfig | None = None
    jdbc: JdbcCatalogConfig | None = None
    rest: RestCatalogConfig | None = None


class IcebergConfig(ConfigModel):
    """Iceberg tables, `<schema>.<table>` in a catalog."""

    catalog: IcebergCatalogConfig = IcebergCatalogConfig(hadoop=HadoopCatalogConfig())
    """Who knows the tables: hadoop (the warehouse's folders), jdbc (a database) or rest (a server)."""
    catalog_name: str = Field(default="penstock", pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    """What Spark calls the catalog; a JDBC catalog also keeps it with every table."""
    warehouse: str | None = Field(default=None, min_length=1, validate_default=True)
    """The folder for the tables, or `s3://bucket/folder` with a JDBC catalog; with a REST catalog, what its server
    calls the warehouse, if it needs to be told."""
    s3: S3Config | None = Field(default=None, validate_default=True)
    """How buckets are reached; needed with a REST catalog whose tables are in one, and `{}` means as elsewhere."""
    cdc_columns: bool = True
    """Whether rows of `current` tables also carry _CHANGE_TYPE, _LSN and _TIMESTAMP. On: they cost little and answer
    most questions. Tables that keep the past always do. To be chosen before tables are copied: one that was made
    otherwise has to be resynced."""
    modes: ModesSetting = ModesConfig()
    """What tables keep: a mode for all (current, history, scd2), or `default` and exceptions in `tables`."""
    upkeep: UpkeepConfig = UpkeepConfig()

    @field_validator("warehouse")
    @classmethod
    def _check_warehouse(cls, warehouse: str | None, info: ValidationInfo) -> str | None:
        catalog = info.data.get("catalog")
        if catalog is not None and catalog.rest is not None:
            return warehouse
        if warehouse is None:
            raise ValueError("a folder for the tables is needed")
        if is_url(warehouse) and catalog is not None and catalog.jdbc is not None and catalog.jdbc.uri is None:
            raise ValueError("a JDBC catalog of tables in a bucket needs a uri: SQLite's file cannot be there")
        return resolve_place(warehouse, info)

    @field_validator("s3")
    @classmethod
    def _default_s3(cls, s3: S3Config | None, info: ValidationInfo) -> S3Config | None:
        return S3Config() if s3 is None and _is_bucket(info.data.get("warehouse")) else s3

    @property
    def catalog_properties(self) -> dict[str, str]:
        """The catalog as Iceberg's library is told of it."""
        chosen = self.catalog.hadoop or self.catalog.jdbc or self.catalog.rest
        assert chosen is not None
        place = {} if self.warehouse is None else {"warehouse": self.warehouse}
        bucket = {} if self.s3 is None else self.s3.iceberg_properties
        return {"type": self.catalog.kind, **place, **bucket, **self._own_properties, **chosen.properties}

    @property
    def _own_properties(self) -> dict[str, str]:
        if self.catalog.rest is not None:
            return {"uri": self.catalog.rest.uri}
        if self.catalog.jdbc is None:
            return {}
        uri = self.catalog.jdbc.uri or f"{_SQLITE}{self.warehouse}/catalog.sqlite"
        # SQLite lets one write at a time; the others wait for it, as with any database.
        busy = {"jdbc.busy_timeout": "60000"} if uri.startswith(_SQLITE) else {}
        return {"uri": uri, "jdbc.schema-version": "V1", **busy}

    @property
    def spark_conf(self) -> dict[str, str]:
        """The settings that make the catalog known to a Spark session, for those who query the tables there."""
        base = f"spark.sql.catalog.{self.catalog_name}"
        # A session that remembered a table would show what it was when first read.
        properties = {"cache-enabled": "false", **self.catalog_properties}
        return {
            base: "org.apache.iceberg.spark.SparkCatalog",
            **{f"{base}.{name}": value for name, value in properties.items()},
        }

    @property
    def packages(self) -> tuple[str, ...]:
        """What Spark needs besides Iceberg itself, as Maven coordinates."""
        jdbc = self.catalog.jdbc
        driver = () if jdbc is None else (jdbc.driver_package or SQLITE_PACKAGE,)
        return driver if self.s3 is None else (*driver, AWS_PACKAGE)


class MemoryDestinationConfig(ConfigModel):
    """Keeps rows in memory: for trying things out."""


class DestinationConfig(OneOf):
    """The chosen destination."""

    delta: DeltaConfig | None = None
    iceberg: IcebergConfig | None = None
    memory: MemoryDestinationConfig | None = None

    @property
    def modes(self) -> TableModes:
        """The mode of every table."""
        lake = self.delta or self.iceberg
        return lake.modes.table_modes if lake else TableModes()

    @property
    def table_formats(self) -> tuple[str, ...]:
        """The formats of tables that Spark has to know."""
        return () if self.memory else (self.kind,)

    @property
    def spark_conf(self) -> Mapping[str, str]:
        """The settings that Spark has to start with for this destination."""
        return self.iceberg.spark_conf if self.iceberg else {}

    @property
    def packages(self) -> tuple[str, ...]:
        """The jars that Spark has to start with besides the format's own, as Maven coordinates."""
        return self.iceberg.packages if self.iceberg else ()
