// What goes over the wire, against a server that says what it was told to say and keeps what it heard.
import assert from "node:assert/strict";
import { createServer, type IncomingHttpHeaders } from "node:http";
import type { AddressInfo } from "node:net";
import { after, test } from "node:test";
import { inspect } from "node:util";

import { ApiError, Client, sentenceOf, tell, TransportError, UnreadableAnswerError, type Diagnostics, type Options } from "../src/index.js";
import { DEFAULT_RETRIES, retryAfterMs, waitMs } from "../src/retry.js";

type Say = { status: number; body?: string; headers?: Record<string, string> } | "hang up" | "nothing";

interface Heard {
  line: string;
  headers: IncomingHttpHeaders;
  body: string;
}

async function scripted(...script: Say[]): Promise<{ client: Client; url: string; heard: Heard[]; with: (options: Partial<Options>) => Client }> {
  const heard: Heard[] = [];
  const server = createServer((request, response) => {
    const pieces: Buffer[] = [];
    request.on("data", (piece: Buffer) => pieces.push(piece));
    request.on("end", () => {
      heard.push({ line: `${request.method} ${request.url}`, headers: request.headers, body: Buffer.concat(pieces).toString() });
      const say = script.shift() ?? "hang up";
      if (say === "hang up") request.socket.destroy();
      else if (say !== "nothing") response.writeHead(say.status, { connection: "close", ...say.headers }).end(say.body ?? "");
    });
  });
  await new Promise<void>((ready) => server.listen(0, "127.0.0.1", ready));
  after(() => {
    server.closeAllConnections();
    server.close();
  });
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  const make = (options: Partial<Options>): Client => new Client({ url, token: "sf_hunter2", ...options });
  return { client: make({}), url, heard, with: make };
}

const ok = (body: unknown): Say => ({ status: 200, body: JSON.stringify(body) });
const refuse = (status: number, code: string, headers: Record<string, string> = {}): Say => ({
  status,
  headers,
  body: JSON.stringify({ error: { code, message: `no: ${code}`, fields: { text: "is odd" }, requestId: "r-1", hint: "new" } }),
});
const diagnostics = (more: Partial<Diagnostics>): Diagnostics => ({ degraded: true, steps: [], tookMs: 1, reasons: [], pending: 0, ...more });
const found = (d: unknown): Say => ok({ results: [{ snippet: "s" }], query: "q", pagination: { limit: 1, nextCursor: "c" }, diagnostics: d, news: 1 });
const accepted = ok({ status: "queued", jobId: "7", documentId: "8", note: "", extracting: true });
const note = { text: "a note", spaceIds: ["default"] };

test("p23 a degraded answer has no results, but partial ones and a sentence", async () => {
  const notice = "Paused. It is safe.";
  const { client } = await scripted(found(diagnostics({ degraded: false })), found({ ...diagnostics({ notice }), incident: 7 }));
  const whole = await client.search("q");
  assert.ok(!whole.degraded);
  assert.equal(whole.results.length, 1);
  assert.equal(whole.nextCursor, "c");
  assert.equal(tell(whole, () => assert.fail("nothing to tell")).length, 1);
  const narrowed = await client.search("q");
  assert.ok(narrowed.degraded);
  assert.equal(narrowed.sentence, notice);
  assert.ok(!("results" in narrowed), "not even for callers without types");
  const told: string[] = [];
  assert.equal(tell(narrowed, (sentence) => told.push(sentence)).length, 1);
  assert.deepEqual(told, [notice]);
});

test("an answer that does not say how whole it is is taken for none", async () => {
  const { client } = await scripted(found({}), found(undefined), ok(null), { status: 200, body: "<html>" });
  for (let n = 0; n < 4; n += 1) await assert.rejects(client.search("q"), UnreadableAnswerError);
});

test("without a notice each reason has its sentence once", () => {
  const reasons = ["question_timeout", "question_embed_busy", "outage"].map((code) => ({ code }));
  assert.match(sentenceOf(diagnostics({ reasons })), /^The question .* by words alone\. Searching by meaning gets no answer/);
  assert.equal(sentenceOf(diagnostics({ reasons: [{ code: "constructor" }] })), "This answer may not be whole.");
  assert.equal(sentenceOf(diagnostics({ notice: " " })), "This answer may not be whole.");
  assert.equal(sentenceOf(diagnostics({ degraded: false })), "");
});

test("p36 p31 a post is tried three times under one key", async () => {
  const { client, heard } = await scripted(refuse(503, "UNAVAILABLE"), "hang up", accepted, accepted, accepted);
  assert.equal((await client.remember(note)).jobId, "7");
  const keys = heard.map((h) => h.headers["idempotency-key"]);
  assert.equal(new Set(keys).size, 1);
  assert.match(String(keys[0]), /^[0-9a-f-]{32,36}$/);
  for (const { line, body, headers } of heard) {
    assert.equal(line, "POST /api/v1/remember");
    assert.deepEqual(JSON.parse(body), note);
    assert.equal(headers.authorization, "Bearer sf_hunter2");
  }
  await client.remember(note);
  await client.remember({ ...note, idempotencyKey: "mine-1" });
  assert.notEqual(heard[3]?.headers["idempotency-key"], keys[0]);
  assert.equal(heard[4]?.headers["idempotency-key"], "mine-1");
  assert.deepEqual(JSON.parse(heard[4]?.body ?? ""), note, "the key is no member of the note");
  await assert.rejects(client.remember({ ...note, idempotencyKey: "two words" }), /idempotencyKey: /);
});

test("p36 it gives up after three tries, and only tries what may pass", async () => {
  const server = await scripted(refuse(500, "INTERNAL_ERROR"), refuse(500, "INTERNAL_ERROR"), refuse(503, "UNAVAILABLE", { "retry-after": "5" }));
  await assert.rejects(server.client.job("7"), (e: unknown) => {
    assert.ok(e instanceof ApiError);
    assert.deepEqual([e.status, e.code, e.requestId, e.retryAfterMs, e.fields], [503, "UNAVAILABLE", "r-1", 5000, { text: "is odd" }]);
    return true;
  });
  assert.equal(server.heard.length, 3);
  for (const status of [400, 401, 404, 408, 409, 413, 422]) {
    const { client, heard } = await scripted(refuse(status, "X"), accepted);
    await assert.rejects(client.remember(note), ApiError);
    assert.equal(heard.length, 1, String(status));
  }
  const once = await scripted(refuse(503, "UNAVAILABLE"), accepted);
  await assert.rejects(once.with({ retries: { tries: 1 } }).remember(note), ApiError);
});

test("p36 waits are full jitter, with Retry-After as a floor with a cap", async () => {
  const most = [1, 2, 3, 4, 5, 6, 7].map((n) => waitMs(DEFAULT_RETRIES, n, undefined, 1));
  assert.deepEqual(most, [250, 500, 1000, 2000, 4000, 8000, 8000]);
  assert.equal(waitMs(DEFAULT_RETRIES, 3, undefined, 0), 0);
  assert.equal(waitMs(DEFAULT_RETRIES, 1, 5_000, 0), 5_000);
  assert.equal(waitMs(DEFAULT_RETRIES, 1, 86_400_000, 1), 300_250);
  const read = (said: string, date?: string): number | undefined =>
    retryAfterMs(new Headers({ "retry-after": said, ...(date ? { date } : {}) }), () => Date.UTC(1994, 10, 6, 8, 49, 30));
  assert.equal(read("7"), 7000);
  assert.equal(read("Sun, 06 Nov 1994 08:49:37 GMT"), 7000);
  assert.equal(read("Sun, 06 Nov 1994 08:49:37 GMT", "Sun, 06 Nov 1994 08:49:36 GMT"), 1000);
  assert.equal(read("Sun, 06 Nov 1994 08:49:37 GMT", "Sun, 06 Nov 1994 09:49:36 GMT"), 0);
  for (const junk of ["soon", "-3", "1.5"]) assert.equal(read(junk), undefined, junk);

  const { client, heard } = await scripted(refuse(429, "RATE_LIMITED", { "retry-after": "1" }), ok({ status: "ok" }));
  const begin = performance.now();
  await client.live();
  assert.ok(performance.now() - begin >= 995);
  assert.equal(heard.length, 2);
});

test("a token goes to no other machine in plain, follows no redirect, and shows nowhere", async () => {
  const make = (url: string, token = "sf_hunter2", allowPlainHttp = false) => new Client({ url, token, allowPlainHttp });
  for (const url of ["http://steadfast.example", "http://10.0.0.1:7787", "http://localhost.example", "http://0.0.0.0"]) {
    assert.throws(() => make(url), /plain http/);
    make(url, "sf_hunter2", true);
  }
  for (const url of ["http://127.0.0.1:7787", "http://localhost:1/", "http://[::1]:7787", "https://steadfast.example/house"]) make(url);
  for (const url of ["hunter2", "ftp://hunter2/", "http://me:hunter2@127.0.0.1/", "http://127.0.0.1/?hunter2"]) {
    assert.throws(() => make(url), (e: Error) => e.message.startsWith("url: ") && !inspect(e).includes("hunter2"));
  }
  for (const token of ["", "two hunter2", "hunter2\nx"]) {
    assert.throws(() => make("http://127.0.0.1", token), (e: Error) => e.message.startsWith("token: ") && !inspect(e).includes("hunter2"));
  }
  const elsewhere = await scripted(ok({}));
  const { client, heard, url } = await scripted({ status: 307, headers: { location: `${elsewhere.url}/` } });
  await assert.rejects(client.spaces(), /another address/);
  assert.equal(elsewhere.heard.length, 0, "the token went after a redirect");
  assert.equal(heard.length, 1);
  const quick = new Client({ url, token: "sf_hunter2", retries: { baseMs: 1 } });
  await assert.rejects(quick.search("a secret question"), (e: unknown) => {
    assert.ok(e instanceof TransportError && e.kind === "network" && e.tries === 3);
    const said = inspect(e, { depth: 9 }) + inspect(quick, { depth: 9, showHidden: true }) + JSON.stringify(quick);
    return !said.includes("hunter2") && !said.includes("secret");
  });
});

test("calls end in time, and when their caller says so", async () => {
  const silent = await scripted("nothing", "nothing", "nothing", "nothing", refuse(429, "RATE_LIMITED", { "retry-after": "60" }));
  await assert.rejects(
    silent.with({ timeoutMs: 50, retries: { baseMs: 1 } }).live(),
    (e: unknown) => e instanceof TransportError && e.kind === "timeout" && e.tries === 3,
  );
  for (const [where, client] of [["in the last try", silent.with({ retries: { tries: 1 } })], ["between tries", silent.client]] as const) {
    const stop = new AbortController();
    const call = client.live({ signal: stop.signal });
    const before = silent.heard.length;
    while (silent.heard.length === before) await new Promise((again) => setTimeout(again, 5));
    setTimeout(() => stop.abort(new Error("enough")), 50);
    await assert.rejects(call, /enough/, where);
  }
});

test("a delete whose answer was lost is done", async () => {
  const gone = refuse(404, "NOT_FOUND");
  const { client } = await scripted("hang up", gone, gone, "hang up", gone);
  await client.deleteDocument("8");
  await assert.rejects(client.deleteDocument("8"), ApiError);
  await assert.rejects(client.document("8"), ApiError);
});

test("every question is spelt as the api reads it", async () => {
  const list = ok({ data: [], pagination: { limit: 2 } });
  const job = (status: string, more: object = {}): Say => ok({ id: "7", type: "extract", status, attempts: 1, queuedAt: "", ...more });
  const document = (status: string, pendingCount: number, more: object = {}): Say => ok({ id: "8", status, pendingCount, ...more });
  const whole = found(diagnostics({ degraded: false }));
  const { client, heard } = await scripted(
    whole, whole, list, list, list, accepted, accepted, job("queued"), job("resting"), job("dead"), job("queued", { hold: { notice: "Paused." } }),
    document("processing", 0), document("processed", 2), document("processed", 0), document("processed", 2, { notice: "Paused." }), list,
    { status: 200, body: "# TYPE x gauge\n" },
  );
  await client.search({ query: "a b", limit: 3, cursor: "c", spaceIds: ["one", "two"], minScore: 0.5, require: "semantic" });
  await client.transcriptSearch("a b");
  await client.jobs({ status: ["dead", "failed"], type: "ocr", limit: 2, cursor: "5" });
  await client.deadJobs({ limit: 2 });
  await client.documents();
  await client.replay("7", { reason: "try again", force: true });
  await client.upload({ content: new TextEncoder().encode("some text"), filename: "a note ü.txt", spaceId: "1", mediaType: "text/plain" });
  const seen: string[] = [];
  const over = await client.waitForJob("7", (j) => seen.push(j.status));
  assert.deepEqual([over.status, seen], ["dead", ["queued", "resting", "dead"]]);
  assert.equal((await client.waitForJob("7")).hold?.notice, "Paused.");
  let looks = 0;
  assert.equal((await client.waitForDocument("8", () => (looks += 1))).notice, undefined);
  assert.equal(looks, 3, "not before it is read, nor while a piece is left");
  assert.equal((await client.waitForDocument("8")).notice, "Paused.");
  await client.spaces();
  assert.match(await client.metrics(), /^# TYPE/);
  assert.deepEqual(
    heard.map((h) => h.line),
    [
      "GET /api/v1/search?query=a+b&limit=3&cursor=c&spaceIds=one&spaceIds=two&minScore=0.5&require=semantic",
      "GET /api/v1/transcript/search?query=a+b",
      "GET /api/v1/jobs?status=dead&status=failed&type=ocr&limit=2&cursor=5",
      "GET /api/v1/jobs/dead?limit=2",
      "GET /api/v1/documents",
      "POST /api/v1/jobs/dead/7/replay",
      "POST /api/v1/uploads/direct?filename=a+note+%C3%BC.txt&spaceId=1",
      "GET /api/v1/jobs/7",
      "GET /api/v1/jobs/7",
      "GET /api/v1/jobs/7",
      "GET /api/v1/jobs/7",
      "GET /api/v1/documents/8",
      "GET /api/v1/documents/8",
      "GET /api/v1/documents/8",
      "GET /api/v1/documents/8",
      "GET /api/v1/spaces",
      "GET /health/metrics",
    ],
  );
  assert.deepEqual(JSON.parse(heard[5]?.body ?? ""), { reason: "try again", force: true });
  assert.deepEqual([heard[6]?.body, heard[6]?.headers["content-type"]], ["some text", "text/plain"]);
  for (const id of ["", "..", "dead/1", "1?x"]) await assert.rejects(client.job(id), /^TypeError: id: /);
});
