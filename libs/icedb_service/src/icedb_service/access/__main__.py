"""The command ``icedb-access``: makes tokens, and checks access files before a service has to."""

import argparse
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from icedb_log.clock import SystemClock
from icedb_log.errors import IceDBError, InvalidRequest

from icedb_service.access.access_file import Verb, read_access_file
from icedb_service.access.policy import Policy, hash_token

TOKEN_PREFIX: Final = "icedbt_"  # noqa: S105 - what scanners for leaked secrets look for
TOKEN_BYTES: Final = 32
EXIT_USAGE: Final = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code: 0 done, 1 not allowed (``--may``), 2 a file or a use that is wrong."""
    options = _parser().parse_args(arguments)
    try:
        return int(options.run(options))
    except IceDBError as error:
        sys.stderr.write(f"icedb-access: {error}\n")
        return EXIT_USAGE


def new_token(_options: argparse.Namespace) -> int:
    """Print a token for the caller, and its hash for the access file. The token is shown this once."""
    token = TOKEN_PREFIX + secrets.token_urlsafe(TOKEN_BYTES)
    sys.stdout.write(f"{token}\n")
    sys.stderr.write(
        "For the caller: ICEDB_TOKEN, or a file for ICEDB_TOKEN_FILE. It is not kept anywhere.\n"
        f'For the access file:  tokens = [{{ sha256 = "{hash_token(token)}" }}]\n'
    )
    return 0


def hash_given(_options: argparse.Namespace) -> int:
    """Print the hash of the token on standard input."""
    sys.stdout.write(hash_token(sys.stdin.readline().strip()) + "\n")
    return 0


def check(options: argparse.Namespace) -> int:
    """Check a file and those that it names; say who may do what, or whether one may do one thing."""
    path = Path(options.file)
    access = read_access_file(path)
    policy = Policy(access, folder=path.parent, clock=SystemClock())
    if options.may is not None:
        identity, verb, table = options.may
        if verb not in tuple(Verb):
            raise InvalidRequest(f"{verb!r} is no verb; there are {', '.join(Verb)}")
        verbs = policy.verbs(identity, table)
        is_allowed = Verb(verb) in verbs
        known = "" if verbs else " (and does not learn whether it is there)"
        sys.stdout.write(f"{identity} {'may' if is_allowed else 'may not'} {verb} {table}{known}\n")
        return 0 if is_allowed else 1
    for name, entry in access.identities.items():
        kinds = ("tokens", "certificates", "jwt", "access_keys")
        counted = [f"{kind} {len(getattr(entry, kind))}" for kind in kinds if getattr(entry, kind)]
        sys.stdout.write(f"identity {name}: {', '.join(counted) or 'no credentials'}\n")
    for grant in access.grants:
        sys.stdout.write(f"grant {', '.join(grant.identities)}: {', '.join(grant.verbs)} {', '.join(grant.tables)}\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("icedb-access", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    commands.add_parser("new-token", help="make a token and its hash").set_defaults(run=new_token)
    commands.add_parser("hash", help="hash the token on standard input").set_defaults(run=hash_given)
    checking = commands.add_parser("check", help="check an access file")
    checking.add_argument("file", help="TOML or JSON")
    checking.add_argument(
        "--may",
        nargs=3,
        metavar=("IDENTITY", "VERB", "TABLE"),
        help=f"only say whether this identity may do this; verbs: {', '.join(Verb)}",
    )
    checking.set_defaults(run=check)
    return parser


if __name__ == "__main__":
    sys.exit(main())
