// The careless ways to read an answer. `check` compiles this file and wants to see exactly the errors that are noted behind
// the lines: one that compiles, or fails for another reason, is a hole in the habit.
import type { Client } from "../../src/index.js";

export async function careless(client: Client): Promise<void> {
  const answer = await client.search("when must the renter move out");
  console.log(answer.results.length); // TS2339
  console.log(answer.partialResults.length); // TS2339
  const { results } = await client.search("when must the renter move out"); // TS2339
  for (const hit of (await client.search("rent")).results) console.log(hit, results); // TS2339
  const said = await client.transcriptSearch("when must the renter move out");
  console.log(said.results.length); // TS2339
  if (answer.degraded) console.log(answer.results); // TS2339

  // The same with care: no error below this line.
  if (answer.degraded) console.log(answer.sentence, answer.partialResults.length);
  else console.log(answer.results.length);
}
