"""Load the files of the archive, one commit each, into a table by day and type."""

from pathlib import Path

from icedb import connect

COLUMNS = ["id", "type", "actor", "repo", "payload"]  # actor, repo and payload come as objects: JSON text


def main() -> None:
    """Create the table and append every file."""
    events = connect().create_table(
        "events",
        partition=["d=day(created_at)", "type"],
        sort=["repo", "created_at"],
        source={"created_at": "TIMESTAMP"} | dict.fromkeys(COLUMNS, "VARCHAR"),
        insert_query=Path("flatten.sql").read_text(),
        merge_query="select distinct * from source_files",
    )
    for path in sorted(Path("archive").glob("*.json.gz")):
        events.append(path)
    snapshot = events.snapshot()
    print(f"{snapshot.row_count} rows in {len(snapshot.files)} files")


if __name__ == "__main__":
    main()
