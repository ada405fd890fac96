// A client of the snapshot service, made from snapshot.proto when the program starts. Copy it and the .proto.
//
// Whole numbers of 64 bits come as text, because a JavaScript number loses digits beyond 2^53: this client makes
// times numbers (unix milliseconds fit) and counts and sizes BigInt. A field that the server left out is absent here,
// too: `file.row_count === undefined` is "not known", never 0.
import { readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import grpc from '@grpc/grpc-js';
import protoLoader from '@grpc/proto-loader';

const PROTO_ROOT = process.env.ICEDB_PROTO_ROOT ?? join(dirname(fileURLToPath(import.meta.url)), '../../../proto');
const MAX_MESSAGE_BYTES = 64 * 1024 * 1024;

const definition = protoLoader.loadSync('icedb/v1/snapshot.proto', {
  includeDirs: [PROTO_ROOT],
  keepCase: true, // names as in the .proto
  longs: String,
  defaults: true, // 0 and "" where a field always has a value; what is `optional` stays absent
});
const { SnapshotService } = grpc.loadPackageDefinition(definition).icedb.v1;

/** What the service refused or could not do. `code` as in the .proto, `kind` the name of the error. */
export class IceDBError extends Error {
  constructor(error) {
    super(error.details || error.message);
    this.name = 'IceDBError';
    this.code = grpc.status[error.code];
    this.kind = error.metadata?.get('icedb-error')[0];
  }
}

export class SnapshotClient {
  #stub;
  #timeoutMs;

  /**
   * @param {string} address host:port
   * @param {object} [options] caFile: PEM of who signed the server's certificate, implies TLS. tls: true for the
   *   system's own roots. certFile and keyFile: a client certificate (mTLS). token: sent as a bearer token.
   */
  constructor(address, { token, tls = false, caFile, certFile, keyFile, timeoutMs = 30_000 } = {}) {
    const read = (file) => (file ? readFileSync(file) : null);
    const isEncrypted = tls || Boolean(caFile);
    if (token && !isEncrypted) throw new Error('a token is sent over TLS only: give caFile, or tls: true');
    let credentials = isEncrypted
      ? grpc.credentials.createSsl(read(caFile), read(keyFile), read(certFile))
      : grpc.credentials.createInsecure();
    if (token) {
      const bearer = grpc.credentials.createFromMetadataGenerator((_, done) => {
        const metadata = new grpc.Metadata();
        metadata.set('authorization', `Bearer ${token}`);
        done(null, metadata);
      });
      credentials = grpc.credentials.combineChannelCredentials(credentials, bearer);
    }
    this.#timeoutMs = timeoutMs;
    this.#stub = new SnapshotService(address, credentials, {
      'grpc.max_receive_message_length': MAX_MESSAGE_BYTES,
      'grpc.enable_http_proxy': 0,
    });
  }

  close() {
    this.#stub.close();
  }

  /** Names of the tables that these credentials may read, page by page. */
  async *listTables({ glob, pageSize } = {}) {
    let pageToken;
    do {
      const answer = await this.#call('ListTables', { glob, page_size: pageSize, page_token: pageToken });
      yield* answer.tables;
      pageToken = answer.next_page_token;
    } while (pageToken !== undefined);
  }

  /**
   * The live data files of a table, of any number: joins the pages of StreamSnapshot. With { since_snapshot_id } of an
   * answer before: if the answer has it, too, `files` came and `removed_paths` went since; else `files` are all.
   */
  async snapshot(table, request = {}) {
    let found;
    for await (const page of this.#stream('StreamSnapshot', { table, ...request }, this.#timeoutMs)) {
      if (found === undefined) found = { ...readHead(page), files: [] };
      else found.file_batches.push(...page.file_batches); // with { columnar: true }: one Arrow IPC stream, joined
      for (const file of page.files) found.files.push(readFile(file));
    }
    return found;
  }

  /** One event for each table at once, then one after each change. Ends when the loop over it is left. */
  async *watch(tables = []) {
    for await (const event of this.#stream('WatchSnapshots', { tables })) {
      yield readCounts(readTimes(event, ['last_commit_ms']));
    }
  }

  #call(method, request) {
    const options = { deadline: Date.now() + this.#timeoutMs };
    return new Promise((resolve, reject) => {
      this.#stub[method](request, options, (error, answer) => (error ? reject(new IceDBError(error)) : resolve(answer)));
    });
  }

  async *#stream(method, request, timeoutMs) {
    const call = this.#stub[method](request, timeoutMs ? { deadline: Date.now() + timeoutMs } : {});
    try {
      yield* call;
    } catch (error) {
      throw new IceDBError(error);
    } finally {
      call.on('error', () => {}); // a loop that is left early cancels the call, which is no error
      call.cancel();
    }
  }
}

function readHead(page) {
  const { files: _, ...head } = readCounts(readTimes(page, ['as_of_ms', 'last_commit_ms', 'horizon_ms', 'staleness_ms']));
  return { ...head, schema: Object.fromEntries(page.schema.map((column) => [column.name, column.type])) };
}

function readFile(file) {
  const partition = Object.fromEntries(file.partition_values.map(({ name, value }) => [name, value ?? null]));
  const { partition_values: _, ...rest } = readCounts(readTimes(file, ['created_ms']));
  return { ...rest, partition };
}

const readTimes = (message, names) => convert(message, names, Number);
const readCounts = (message) =>
  convert(message, ['row_count', 'size_bytes', 'file_count', 'total_file_count'], BigInt);

function convert(message, names, to) {
  const copy = { ...message };
  for (const name of names) if (copy[name] !== undefined && copy[name] !== null) copy[name] = to(copy[name]);
  return copy;
}
