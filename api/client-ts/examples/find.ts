// Asks a question; with --file, hands in a file first and waits until it has been read.
//
//   npm run find -- "when must the renter move out"
//   npm run find -- --file ../../ops/samples/note.txt "which coffee machine leaks"
//
// STEADFAST_URL and STEADFAST_TOKEN say where and who, or the file that ops/up wrote: STEADFAST_ENV_FILE, else the first
// .steadfast/env in this folder or one above it.
import { existsSync } from "node:fs";
import { readFile } from "node:fs/promises";
import { basename, dirname, join } from "node:path";
import { parseArgs } from "node:util";

import { Client, type Hit, type Job } from "../src/index.js";

async function main(): Promise<void> {
  const { values, positionals } = parseArgs({
    options: { file: { type: "string" }, space: { type: "string" } },
    allowPositionals: true,
  });
  if (positionals.length === 0) throw new Error("usage: find [--file FILE] [--space NAME] QUESTION...");
  const client = new Client({ url: await setting("STEADFAST_URL"), token: await setting("STEADFAST_TOKEN") });
  if (values.file !== undefined) await handIn(client, values.file, values.space);

  const answer = await client.search({ query: positionals.join(" "), limit: 5, spaceIds: values.space ? [values.space] : [] });
  // The one place where the habit shows: without this question there are no results.
  if (answer.degraded) {
    show(answer.partialResults);
    console.log(plain(answer.sentence));
  } else {
    show(answer.results);
  }
}

/** Uploads, and waits until it can be found or is held. */
async function handIn(client: Client, file: string, named: string | undefined): Promise<void> {
  const content = await readFile(file);
  const spaces = named === undefined ? (await client.spaces()).data : [];
  const spaceId = named ?? (spaces.length === 1 ? spaces[0]?.id : undefined);
  if (spaceId === undefined) throw new Error(`name the Space with --space; yours are ${spaces.map((s) => s.name).join(", ")}`);
  const { jobId, documentId } = await client.upload({ content, filename: basename(file), spaceId });

  let last = "";
  const job = await client.waitForJob(jobId, (seen) => (last = progress(seen, last)));
  if (process.stderr.isTTY) process.stderr.write("\n");
  if (job.hold) console.log(plain(job.hold.notice));
  else if (job.status !== "completed") throw new Error(`job ${job.id} is ${job.status}: ${job.error ?? "no reason given"}`);
  // Its words can be found now, its meaning in a moment. Past this time the answer itself says what it lacks.
  else await waited(30_000, (signal) => client.waitForDocument(documentId, undefined, { signal }));
}

/** Waits for it, but not longer than that. */
async function waited(ms: number, start: (signal: AbortSignal) => Promise<unknown>): Promise<void> {
  const signal = AbortSignal.timeout(ms);
  await start(signal).catch((error: unknown) => {
    if (!signal.aborted) throw error;
  });
}

/** One line on stderr that a terminal overwrites; elsewhere a line for each change. */
function progress(job: Job, last: string): string {
  const share = typeof job.progress === "number" ? ` ${Math.round(job.progress * 100)} %` : "";
  const line = `job ${job.id}: ${job.status}${share}`;
  if (line !== last) process.stderr.write(process.stderr.isTTY ? `\r\x1b[K${line}` : `${line}\n`);
  return line;
}

function show(hits: readonly Hit[]): void {
  hits.forEach((hit, n) => {
    console.log(`${n + 1}. ${plain(hit.memory.title)}  page ${hit.page}  ${hit.score.toFixed(2)}`);
    console.log(`   ${plain(hit.snippet)}`);
  });
  if (hits.length === 0) console.log("nothing was found");
}

/** What a document says must not move the cursor. */
function plain(text: string): string {
  return text.replace(/\p{Cc}/gu, " ");
}

/** From the environment, else from the file that ops/up writes: lines of NAME='value'. */
async function setting(name: string): Promise<string> {
  const value = process.env[name];
  if (value) return value;
  const file = process.env["STEADFAST_ENV_FILE"] ?? above(process.cwd());
  if (!file) throw new Error(`${name} is not set, and there is no .steadfast/env here or above: start ops/up, or set it`);
  const line = (await readFile(file, "utf8")).split("\n").find((l) => l.startsWith(`${name}=`));
  if (line === undefined) throw new Error(`${file} has no ${name}`);
  return line.slice(name.length + 1).trim().replace(/^'(.*)'$|^"(.*)"$/, "$1$2");
}

function above(folder: string): string | undefined {
  const file = join(folder, ".steadfast/env");
  if (existsSync(file)) return file;
  return dirname(folder) === folder ? undefined : above(dirname(folder));
}

main().catch((error: unknown) => {
  console.error(`find: ${error instanceof Error ? error.message : String(error)}`);
  process.exitCode = 1;
});
