"""Tables in the form of Apache Iceberg: types, manifests, metadata. No row is read or written here."""

from icedb_iceberg.location import read_location, set_location
from icedb_iceberg.publishing import find_held_back, metadata_uri, publish_table
from icedb_iceberg.unfit_files import UnfitFiles
from icedb_iceberg.writer import IcebergWriter, read_metadata

__all__ = [
    "IcebergWriter",
    "UnfitFiles",
    "find_held_back",
    "metadata_uri",
    "publish_table",
    "read_location",
    "read_metadata",
    "set_location",
]
