"""A Ceph cluster of one node with its S3 gateway, from Debian's packages: a monitor, an OSD in memory, radosgw.

``apt-get install --no-install-recommends radosgw ceph-mon ceph-osd`` has all that is needed.
"""

import shutil
import subprocess
import time
import urllib.request
import uuid
from contextlib import ExitStack, contextmanager

import boto3
from botocore.config import Config
from icedb_log.store.s3_options import S3Options
from processes import free_port
from waiting import LIMIT_S, wait_until

PROGRAMS = ("ceph", "ceph-mon", "ceph-osd", "monmaptool", "radosgw", "radosgw-admin")
MISSING = [name for name in PROGRAMS if shutil.which(name) is None]
BUCKET, KEY = "lake", "ceph"
CONFIG = """
[global]
fsid = {cluster}
mon host = v2:127.0.0.1:{monitor}
public addr = 127.0.0.1
auth cluster required = none
auth service required = none
auth client required = none
ms mon client mode = crc
ms bind msgr1 = false
mon allow pool size one = true
mon max pg per osd = 1000
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 8
osd pool default pgp num = 8
osd crush chooseleaf type = 0
osd objectstore = memstore
memstore device bytes = 2147483648
mon data = {folder}/mon
osd data = {folder}/osd
run dir = {folder}
admin socket = {folder}/$name.asok
pid file = {folder}/$name.pid
log file = {folder}/$name.log
rgw data = {folder}
rgw frontends = beast endpoint=127.0.0.1:{gateway}
rgw max listing results = 100
"""


@contextmanager
def running_ceph(folder):
    """Run a cluster whose listings have at most 100 objects a page; yield the options of its S3 with an empty bucket."""
    monitor, gateway = free_port(), free_port()
    cluster, endpoint = str(uuid.uuid4()), f"http://127.0.0.1:{gateway}"
    config = folder / "ceph.conf"
    config.write_text(CONFIG.format(cluster=cluster, monitor=monitor, gateway=gateway, folder=folder))
    for name in ("mon", "osd"):
        (folder / name).mkdir()

    def run(program, *arguments):
        command = [program, "-c", config, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        assert done.returncode == 0, (command, done.stderr)

    with ExitStack() as stack:

        def start(*command):
            process = subprocess.Popen(
                [command[0], "-f", "-c", config, *command[1:]], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            stack.callback(process.wait, LIMIT_S)
            stack.callback(process.kill)

        address = f"[v2:127.0.0.1:{monitor}]"
        run("monmaptool", "--create", "--addv", "a", address, "--fsid", cluster, folder / "monmap")
        run("ceph-mon", "-i", "a", "--mkfs", "--monmap", folder / "monmap")
        start("ceph-mon", "-i", "a")
        osd = str(uuid.uuid4())
        run("ceph", "osd", "new", osd)
        run("ceph-osd", "-i", "0", "--mkfs", "--osd-uuid", osd)
        start("ceph-osd", "-i", "0")
        start("radosgw", "-n", "client.admin")
        run("radosgw-admin", "user", "create", "--uid=u", "--display-name=u", f"--access-key={KEY}", f"--secret={KEY}")
        wait_until(lambda: _answers(endpoint), "the gateway answers")
        keys = {"aws_access_key_id": KEY, "aws_secret_access_key": KEY, "region_name": "us-east-1"}
        addressing = Config(s3={"addressing_style": "path"})
        boto3.client("s3", endpoint_url=endpoint, config=addressing, **keys).create_bucket(Bucket=BUCKET)
        yield S3Options(endpoint, access_key_id=KEY, secret_access_key=KEY)


def _answers(endpoint):
    try:
        urllib.request.urlopen(endpoint, timeout=LIMIT_S).close()
    except OSError:
        time.sleep(0.1)
        return False
    return True
