"""How a bucket of S3, or of a store that speaks its protocol, is reached."""

from __future__ import annotations

from typing import Self

from pydantic import Field, SecretStr, model_validator

from penstock.config.model import ConfigModel

AWS_PACKAGE = "org.apache.iceberg:iceberg-aws-bundle:1.12.0"
"""What Iceberg's library needs in order to reach S3; fetched only where tables are there."""


class S3Config(ConfigModel):
    """Without keys, those in the environment count (AWS_ACCESS_KEY_ID, …), or else the role of the machine or pod."""

    endpoint: str | None = Field(default=None, pattern=r"^https?://")
    """The store's address, e.g. https://minio.example.com:9000. None is Amazon's."""
    region: str | None = Field(default=None, min_length=1)
    """None is AWS_REGION, or us-east-1, which most other stores go by."""
    access_key_id: str | None = Field(default=None, min_length=1)
    """Who we are."""
    secret_access_key: SecretStr | None = None
    """Best given as ${NAME}, which is read from the environment."""
    session_token: SecretStr | None = None
    """Goes with keys that were lent for some hours."""

    @model_validator(mode="after")
    def _check_complete(self) -> Self:
        if (self.access_key_id is None) != (self.secret_access_key is None):
            raise ValueError("access_key_id and secret_access_key are given together, or not at all")
        return self

    @property
    def iceberg_properties(self) -> dict[str, str]:
        """The same as Iceberg's library is told it."""
        given = {
            "s3.endpoint": self.endpoint,
            # Other stores seldom have a host name for every bucket.
            "s3.path-style-access": None if self.endpoint is None else "true",
            "client.region": self.region or (None if self.endpoint is None else "us-east-1"),
            "s3.access-key-id": self.access_key_id,
            "s3.secret-access-key": _revealed(self.secret_access_key),
            "s3.session-token": _revealed(self.session_token),
        }
        found = {name: value for name, value in given.items() if value is not None}
        return {"io-impl": "org.apache.iceberg.aws.s3.S3FileIO", **found}


def _revealed(secret: SecretStr | None) -> str | None:
    return None if secret is None else secret.get_secret_value()
