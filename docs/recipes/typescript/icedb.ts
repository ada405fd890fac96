// A sender over HTTP that tries again, on a client whose types are made from openapi.json. Copy it.
import { randomBytes } from 'node:crypto';
import createClient, { type Client } from 'openapi-fetch';
import type { components, paths } from './api.js';

export type Problem = components['schemas']['Problem'];
export type Accepted = components['schemas']['Accepted'];
export type IceDB = Client<paths>;

/** What a service refused. Sending it again fails again. */
export class Refused extends Error {
  constructor(readonly problem: Problem) {
    super(`${problem.status} ${problem.title}: ${problem.detail}`);
  }
}

/** A client of a front end, or of a console; its paths, bodies and answers have types. */
export function connect(address: string, token?: string): IceDB {
  return createClient<paths>({ baseUrl: address, headers: token ? { Authorization: `Bearer ${token}` } : {} });
}

/** The answer of a call. Throws Refused. */
export function answerOf<T>(result: { data?: T; error?: unknown }): T {
  if (result.data === undefined) throw new Refused(result.error as Problem);
  return result.data;
}

/** An id of a batch. It may be sent under it for the table's retry window: 7.5 minutes by default. */
export function newBatchId(nowMs = Date.now()): string {
  const bytes = randomBytes(16);
  bytes.writeUIntBE(nowMs, 0, 6);
  bytes[6] = 0x70 | (bytes[6]! & 0x0f);
  bytes[8] = 0x80 | (bytes[8]! & 0x3f);
  return bytes.toString('hex').replace(/^(.{8})(.{4})(.{4})(.{4})/, '$1-$2-$3-$4-');
}

const PASSING = new Set([408, 429, 500, 502, 503, 504]);

/**
 * Sends rows as one batch, again under the same id until it is answered: then it is durable, and counts once.
 * Throws Refused if it is wrong, or the last failure once its time is over: it may be there all the same.
 */
export async function send(
  client: IceDB,
  table: string,
  rows: object[],
  { batchId = newBatchId(), timeoutMs = 300_000 } = {},
): Promise<Accepted> {
  const body = rows.map((row) => JSON.stringify(row)).join('\n');
  const endMs = Date.now() + timeoutMs;
  for (let pauseMs = 100; ; pauseMs = Math.min(2 * pauseMs, 10_000)) {
    let failure: unknown;
    let waitMs = pauseMs * (0.5 + Math.random());
    try {
      const { data, error, response } = await client.POST('/v1/tables/{table}/batches', {
        params: { path: { table }, header: { 'Idempotency-Key': batchId } },
        headers: { 'Content-Type': 'application/x-ndjson' },
        body,
        bodySerializer: (text) => text as string,
        signal: AbortSignal.timeout(30_000),
      });
      if (data !== undefined) return data;
      failure = new Refused(error);
      if (!PASSING.has(response.status)) throw failure;
      waitMs = Math.max(waitMs, error.retry_after_ms ?? 0);
    } catch (error) {
      if (error === failure) throw error;
      failure = error; // no answer, or one that is not of a front end
    }
    if (Date.now() + waitMs > endMs) throw failure;
    await new Promise((resolve) => setTimeout(resolve, waitMs));
  }
}
