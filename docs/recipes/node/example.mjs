// node example.mjs tables | snapshot TABLE [WHERE] | watch TABLE COUNT
// Settings as of every client: ICEDB_SNAPSHOT_ADDRESS, ICEDB_TOKEN, ICEDB_TLS, ICEDB_CA_FILE.
import { IceDBError, SnapshotClient } from './icedb.mjs';

const print = (value) =>
  console.log(JSON.stringify(value, (_, part) => (typeof part === 'bigint' ? String(part) : part)));

const { env } = process;
const [command, table, argument] = process.argv.slice(2);
const client = new SnapshotClient(env.ICEDB_SNAPSHOT_ADDRESS ?? '127.0.0.1:50051', {
  token: env.ICEDB_TOKEN,
  tls: env.ICEDB_TLS === 'true',
  caFile: env.ICEDB_CA_FILE,
  certFile: env.ICEDB_CLIENT_CERT_FILE,
  keyFile: env.ICEDB_CLIENT_KEY_FILE,
});

try {
  if (command === 'tables') {
    for await (const name of client.listTables({ pageSize: 2 })) print(name);
  } else if (command === 'snapshot') {
    print(await client.snapshot(table, { where: argument, max_staleness_ms: 0 }));
  } else {
    let count = Number(argument);
    for await (const event of client.watch([table])) {
      print(event);
      if (--count === 0) break;
    }
  }
} catch (error) {
  if (!(error instanceof IceDBError)) throw error;
  console.error(`${error.code} ${error.kind}: ${error.message}`);
  process.exitCode = 1;
} finally {
  client.close();
}
