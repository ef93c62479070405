import { answerOf, type Answer } from "./answer.js";
import { ApiError, errorOf, TransportError, UnreadableAnswerError } from "./errors.js";
import { DEFAULT_RETRIES, isWorthIt, retryAfterMs, waitMs, type Retries } from "./retry.js";
import type { components, operations } from "./schema.js";

type Schemas = components["schemas"];
type QueryOf<Name extends keyof operations> = NonNullable<operations[Name]["parameters"]["query"]>;

export type Accepted = Schemas["Accepted"];
export type DeadLetter = Schemas["DeadLetter"];
export type Document = Schemas["Document"];
export type Hit = Schemas["SearchResult"];
export type Job = Schemas["Job"];
export type Passage = Schemas["TranscriptResult"];
export type Replayed = Schemas["Replayed"];
export type Space = Schemas["Space"];
/** One page of a list; the list has ended only when there is no `pagination.nextCursor`. */
export interface Page<Item> {
  data: Item[];
  pagination: Schemas["Pagination"];
}

export type SearchQuery = QueryOf<"search_search">;
export type TranscriptQuery = QueryOf<"search_transcript">;
export type JobsQuery = QueryOf<"jobs_list">;
export type DeadJobsQuery = QueryOf<"jobs_dead">;
export type DocumentsQuery = QueryOf<"documents_list">;

/** A POST carries the same key on every try, so a second try is not a second document; give one that outlives this process to send it again later. */
export interface Keyed {
  idempotencyKey?: string;
}

export type Note = Schemas["Remember"] & Keyed;
export type Replay = Schemas["Replay"] & Keyed;

/** Something that can be sent twice: a retry needs the body again, which is why no stream is taken. */
export type Upload = QueryOf<"ingest_upload"> & Keyed & { content: Blob | Uint8Array | string; mediaType?: string };

export interface Options {
  /** Like `https://steadfast.example`, or `http://127.0.0.1:7787` on this machine. */
  url: string;
  token: string;
  /** What differs from three tries. */
  retries?: Partial<Retries>;
  /** For one try of a request. */
  timeoutMs?: number;
  /** For one try of an upload. */
  uploadTimeoutMs?: number;
  /** Plain HTTP to another machine: everybody on the way can read the token and the documents. For networks that are private themselves. */
  allowPlainHttp?: boolean;
}

/** For one call. */
export interface CallOptions {
  /** Ends the call, its waiting between tries included. */
  signal?: AbortSignal;
}

interface Call extends CallOptions {
  method?: "GET" | "POST" | "DELETE";
  query?: Query;
  headers?: Record<string, string>;
  body?: Blob | Uint8Array | string;
  timeoutMs?: number;
  /** For a DELETE: "not there" after a try whose answer was lost means that it worked. */
  goneIsDone?: boolean;
}

type Query = Readonly<Record<string, string | number | readonly (string | number)[] | null | undefined>>;

interface Answered {
  status: number;
  text: string;
}

/** Talks to one API as one person. */
export class Client {
  readonly #base: URL;
  // Private by the language: neither a log nor JSON.stringify shows it.
  readonly #token: string;
  readonly #retries: Retries;
  readonly #timeoutMs: number;
  readonly #uploadTimeoutMs: number;

  /** Throws a TypeError that names the option; what was given is not repeated, for a token may have been put into the wrong place. */
  constructor(options: Options) {
    this.#base = baseOf(options.url, options.allowPlainHttp ?? false);
    this.#token = options.token.trim();
    if (!/^[\x21-\x7e]+$/.test(this.#token)) throw new TypeError("token: must be one word, as `steadfast token create` printed it");
    this.#retries = { ...DEFAULT_RETRIES, ...options.retries };
    // Longer than the server itself works on a request, or waits for a body, so that the refusal is told by it.
    this.#timeoutMs = options.timeoutMs ?? 125_000;
    this.#uploadTimeoutMs = options.uploadTimeoutMs ?? 720_000;
  }

  /** Keeps a note. When this returns it is on disk and in a row. */
  async remember({ idempotencyKey, ...note }: Note, options: CallOptions = {}): Promise<Accepted> {
    return this.#json("api/v1/remember", { ...options, ...posted(note, idempotencyKey) });
  }

  /** Keeps a file. When this returns it is on disk and in a row. */
  async upload({ content, mediaType, idempotencyKey, ...query }: Upload, options: CallOptions = {}): Promise<Accepted> {
    return this.#json("api/v1/uploads/direct", {
      ...options,
      method: "POST",
      query,
      body: content,
      headers: { "content-type": mediaType ?? "application/octet-stream", "idempotency-key": keyOf(idempotencyKey) },
      timeoutMs: this.#uploadTimeoutMs,
    });
  }

  /** Finds what you know, by words and by meaning. */
  async search(question: string | SearchQuery, options: CallOptions = {}): Promise<Answer<Hit>> {
    return this.#answer("api/v1/search", question, options);
  }

  /** Finds what was said in conversations, by meaning alone: `SEMANTIC_UNAVAILABLE` where nothing can match, which is not the same as nothing matched. */
  async transcriptSearch(question: string | TranscriptQuery, options: CallOptions = {}): Promise<Answer<Passage>> {
    return this.#answer("api/v1/transcript/search", question, options);
  }

  /** What you asked for, newest first. */
  async jobs(query: JobsQuery = {}, options: CallOptions = {}): Promise<Page<Job>> {
    return this.#json("api/v1/jobs", { ...options, query });
  }

  async job(id: string, options: CallOptions = {}): Promise<Job> {
    return this.#json(`api/v1/jobs/${checked(id)}`, options);
  }

  /**
   * Looks at a job until nothing more happens to it by itself, or until it is held (`job.hold`): that may last, and its notice is
   * what to tell. A failed or dead job is returned too; look at `job.status`.
   */
  async waitForJob(id: string, seen: (job: Job) => void = () => {}, options: CallOptions = {}): Promise<Job> {
    for (let wait = 150; ; wait = Math.min(wait * 1.5, 2_000)) {
      const job = await this.job(id, options);
      seen(job);
      if (job.hold || ["completed", "failed", "dead"].includes(job.status)) return job;
      await sleep(wait, options.signal);
    }
  }

  /**
   * Looks at a document whose job is completed until all of it can be found by meaning too, or until that is held
   * (`document.notice`). Its words can be found before, and an answer without the rest counts as whole for half a minute.
   *
   * A piece that was given up is never found by meaning, so give it a signal that ends after about that half minute: answers say by
   * themselves what they lack from then on.
   */
  async waitForDocument(id: string, seen: (document: Document) => void = () => {}, options: CallOptions = {}): Promise<Document> {
    for (let wait = 150; ; wait = Math.min(wait * 1.5, 2_000)) {
      const document = await this.document(id, options);
      seen(document);
      const read = ["processed", "empty", "failed"].includes(document.status);
      if (document.notice || (read && document.pendingCount === 0)) return document;
      await sleep(wait, options.signal);
    }
  }

  /** Work of yours that gave up or was set aside, newest first. */
  async deadJobs(query: DeadJobsQuery = {}, options: CallOptions = {}): Promise<Page<DeadLetter>> {
    return this.#json("api/v1/jobs/dead", { ...options, query });
  }

  /** Puts given-up work back in the queue. `NOT_FOUND` may also mean that a first try worked and its answer was lost. */
  async replay(id: string, { idempotencyKey, ...replay }: Replay = {}, options: CallOptions = {}): Promise<Replayed> {
    return this.#json(`api/v1/jobs/dead/${checked(id)}/replay`, { ...options, ...posted(replay, idempotencyKey) });
  }

  async spaces(options: CallOptions = {}): Promise<Page<Space>> {
    return this.#json("api/v1/spaces", options);
  }

  /** Documents in your Spaces, newest first. */
  async documents(query: DocumentsQuery = {}, options: CallOptions = {}): Promise<Page<Document>> {
    return this.#json("api/v1/documents", { ...options, query });
  }

  async document(id: string, options: CallOptions = {}): Promise<Document> {
    return this.#json(`api/v1/documents/${checked(id)}`, options);
  }

  /** Takes a document of yours away, with all that was made of it. */
  async deleteDocument(id: string, options: CallOptions = {}): Promise<void> {
    await this.#send(`api/v1/documents/${checked(id)}`, { ...options, method: "DELETE", goneIsDone: true });
  }

  /** The API's process lives. */
  async live(options: CallOptions = {}): Promise<void> {
    await this.#send("health/live", options);
  }

  /** It can serve; else an `ApiError` with `NOT_READY` and what is missing. */
  async ready(options: CallOptions = {}): Promise<void> {
    await this.#send("health/ready", options);
  }

  /** The numbers, in Prometheus' text format. */
  async metrics(options: CallOptions = {}): Promise<string> {
    return (await this.#send("health/metrics", options)).text;
  }

  async #answer<Found>(path: string, question: string | SearchQuery | TranscriptQuery, options: CallOptions): Promise<Answer<Found>> {
    const query = typeof question === "string" ? { query: question } : question;
    const { status, text } = await this.#send(path, { ...options, query: { ...query } });
    const answer = answerOf<Found>(parsed(status, text));
    if (!answer) throw new UnreadableAnswerError(status, "it does not say how whole it is (diagnostics.degraded)");
    return answer;
  }

  async #json<T>(path: string, call: Call): Promise<T> {
    const { status, text } = await this.#send(path, call);
    return parsed(status, text);
  }

  async #send(path: string, call: Call): Promise<Answered> {
    for (let tries = 1, maybeDone = false; ; tries += 1) {
      let failed: ApiError | TransportError | UnreadableAnswerError;
      let again: boolean;
      let retryAfter: number | undefined;
      try {
        const response = await this.#once(path, call);
        if (response.status >= 200 && response.status < 300) return response;
        retryAfter = response.retryAfter;
        failed = errorOf(response.status, response.text, retryAfter);
        again = isWorthIt(response.status);
      } catch (cause) {
        // The caller's own wish to end is no failure of ours.
        call.signal?.throwIfAborted();
        failed = new TransportError(cause instanceof TimeUp ? "timeout" : "network", this.#base.origin, tries, cause);
        again = true;
      }
      if (call.goneIsDone && maybeDone && failed instanceof ApiError && failed.code === "NOT_FOUND") return { status: 204, text: "" };
      if (!again || tries >= this.#retries.tries) throw failed;
      maybeDone = true;
      await sleep(waitMs(this.#retries, tries, retryAfter, Math.random()), call.signal);
    }
  }

  async #once(path: string, call: Call): Promise<Answered & { retryAfter: number | undefined }> {
    // By hand: AbortSignal.any is younger than the oldest Node that this runs on.
    const stop = new AbortController();
    const giveUp = (): void => stop.abort(call.signal?.reason);
    call.signal?.throwIfAborted();
    call.signal?.addEventListener("abort", giveUp, { once: true });
    const timer = setTimeout(() => stop.abort(new TimeUp()), call.timeoutMs ?? this.#timeoutMs);
    try {
      const response = await fetch(this.#url(path, call.query), {
        method: call.method ?? "GET",
        headers: { ...call.headers, authorization: `Bearer ${this.#token}` },
        body: call.body,
        // A token is not sent after a redirect.
        redirect: "manual",
        signal: stop.signal,
      });
      return { status: response.status, text: await response.text(), retryAfter: retryAfterMs(response.headers) };
    } finally {
      clearTimeout(timer);
      call.signal?.removeEventListener("abort", giveUp);
    }
  }

  #url(path: string, query: Query = {}): URL {
    const url = new URL(this.#base);
    url.pathname = `${url.pathname.replace(/\/$/, "")}/${path}`;
    for (const [name, value] of Object.entries(query)) {
      for (const one of Array.isArray(value) ? value : [value]) {
        if (one !== undefined && one !== null) url.searchParams.append(name, String(one));
      }
    }
    return url;
  }
}

class TimeUp extends Error {
  override readonly name = "TimeUp";
}

function baseOf(given: string, allowPlainHttp: boolean): URL {
  let url: URL;
  try {
    url = new URL(given.trim());
  } catch {
    throw new TypeError("url: is not a URL; it looks like https://steadfast.example");
  }
  if (url.protocol !== "http:" && url.protocol !== "https:") throw new TypeError("url: must begin with https:// (or http://, on this machine)");
  if (url.username || url.password) throw new TypeError("url: must not hold a password; the API takes a token");
  if (url.search || url.hash) throw new TypeError("url: must end with the path; no ? and no #");
  const loopback = url.hostname === "localhost" || url.hostname === "[::1]" || /^127(\.\d+){3}$/.test(url.hostname);
  if (url.protocol === "http:" && !loopback && !allowPlainHttp) {
    throw new TypeError(
      "url: is plain http to another machine, where the token could be read on the way; use https, or allowPlainHttp where the network itself is private",
    );
  }
  return url;
}

/** An id as the server gives them out. Anything else could name another route. */
function checked(id: string): string {
  if (!/^[A-Za-z0-9_-]+$/.test(id)) throw new TypeError("id: is none that the API gave out");
  return id;
}

function keyOf(given: string | undefined): string {
  if (given === undefined) {
    // Unique, not secret: where the platform's own is not there (Node 18, pages without TLS) four draws do.
    const own = (globalThis as { crypto?: { randomUUID?: () => string } }).crypto;
    return own?.randomUUID?.() ?? Array.from({ length: 4 }, () => Math.floor(Math.random() * 2 ** 32).toString(16).padStart(8, "0")).join("");
  }
  if (!/^[\x21-\x7e]{1,255}$/.test(given)) throw new TypeError("idempotencyKey: must be 1 to 255 printable ASCII characters without spaces");
  return given;
}

function posted(body: object, idempotencyKey: string | undefined): Call {
  return {
    method: "POST",
    body: JSON.stringify(body),
    headers: { "content-type": "application/json", "idempotency-key": keyOf(idempotencyKey) },
  };
}

function parsed<T>(status: number, text: string): T {
  try {
    return JSON.parse(text) as T;
  } catch {
    throw new UnreadableAnswerError(status, "it is no JSON");
  }
}

function sleep(ms: number, signal: AbortSignal | undefined): Promise<void> {
  return new Promise((resolve, reject) => {
    signal?.throwIfAborted();
    const end = (): void => {
      clearTimeout(timer);
      reject(signal?.reason as Error);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", end);
      resolve();
    }, ms);
    signal?.addEventListener("abort", end, { once: true });
  });
}
