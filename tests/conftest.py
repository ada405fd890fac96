"""For every test with real servers: JVMs that start quickly, because here they live for seconds."""

import os

os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:+UseSerialGC -XX:TieredStopAtLevel=1")
