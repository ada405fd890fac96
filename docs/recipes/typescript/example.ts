// node build/example.js create TABLE | send TABLE ROW... | query SQL
// Settings: ICEDB_ADDRESS (the front end), ICEDB_CONSOLE_ADDRESS, ICEDB_TOKEN.
import { Refused, answerOf, connect, send } from './icedb.js';

const { env } = process;
const [command, ...rest] = process.argv.slice(2);
const frontEnd = connect(env.ICEDB_ADDRESS ?? 'http://127.0.0.1:8088', env.ICEDB_TOKEN);
const consoleService = connect(env.ICEDB_CONSOLE_ADDRESS ?? 'http://127.0.0.1:8090', env.ICEDB_TOKEN);

try {
  if (command === 'create') {
    const params = { path: { table: rest[0]! } };
    const body = { partition: ['d=day(ts)'], sort: ['ts'], declared: {}, settings: {} };
    console.log(answerOf(await frontEnd.PUT('/v1/tables/{table}', { params, body })).partition);
  } else if (command === 'send') {
    const [table, ...rows] = rest;
    console.log((await send(frontEnd, table!, rows.map((row) => JSON.parse(row)))).batch_id);
  } else {
    console.log(answerOf(await consoleService.POST('/v1/query', { body: { sql: rest[0]! } })).rows);
  }
} catch (error) {
  if (!(error instanceof Refused)) throw error;
  console.error(error.message);
  process.exitCode = 1;
}
