// Schemas that zod 4 and zod-to-json-schema make, with texts that zod itself finds valid and invalid, as JSON.
import { z } from "zod/v4";
import { z as z3 } from "zod/v3";
import { zodToJsonSchema } from "zod-to-json-schema";

// The same model by both; `zod` is one of them.
function model(zod, string) {
  const item = zod.object({ name: zod.string().min(1), count: zod.number().int().positive().optional() }).strict();
  return zod.object({
    item,
    mail: string.mail.optional(),
    state: zod.enum(["new", "done"]).nullable().optional(),
    pair: zod.tuple([zod.string(), zod.number()]).optional(),
    rest: zod.tuple([zod.string()]).rest(zod.boolean()).optional(),
    scores: zod.record(zod.string(), zod.number()).optional(),
    pet: zod.discriminatedUnion("kind", [zod.object({ kind: zod.literal("cat"), lives: zod.number() }), zod.object({ kind: zod.literal("dog") })]).optional(),
    either: zod.union([zod.string(), zod.boolean()]).optional(),
    both: zod.intersection(zod.object({ a: zod.string() }), zod.object({ b: zod.boolean() })).optional(),
    half: zod.number().multipleOf(0.5).optional(),
    again: item.optional(),
    never: zod.never().optional(),
    ...string.more,
  }).strict();
}

const values = [
  { item: { name: "a" } }, { item: { name: "a", count: 2 }, mail: "a.b@example.com", state: "done" }, { item: { name: "a" }, state: null },
  { item: { name: "a" }, pair: ["x", 1.5], rest: ["y", true, false], scores: { x: 1, y: 2.5 } }, { item: { name: "a" }, pet: { kind: "cat", lives: 9 } },
  { item: { name: "a" }, pet: { kind: "dog" }, either: false, both: { a: "x", b: true }, half: 1.5, again: { name: "b" } },
  {}, { item: { name: "" } }, { item: { name: "a", count: 0 } }, { item: { name: "a" }, mail: "a..b@example.com" }, { item: { name: "a" }, state: "old" },
  { item: { name: "a" }, pair: ["x"] }, { item: { name: "a" }, rest: ["y", 1] }, { item: { name: "a" }, scores: { x: "1" } },
  { item: { name: "a" }, pet: { kind: "cow" } }, { item: { name: "a" }, pet: { kind: "cat" } }, { item: { name: "a" }, either: 1 },
  { item: { name: "a" }, both: { a: "x" } }, { item: { name: "a" }, half: 1.25 }, { item: { name: "a" }, again: { name: "b", x: 1 } },
  { item: { name: "a" }, more: 1 }, { item: { name: "a" }, never: 1 }, { item: { name: "a" }, time: "12:30" }, { item: { name: "a" }, time: "12:30Z" },
  { item: { name: "a" }, span: "P1DT2H" }, { item: { name: "a" }, span: "P" }, { item: { name: "a" }, code: "MTIz" }, { item: { name: "a" }, code: "M" },
  { item: { name: "a" }, id: "3f2504e0-4f89-41d3-9a0c-0305e82c3301" }, { item: { name: "a" }, id: "3f2504e0" },
];

const made = {};
// Of OpenAPI 3.0 an enum without null has none, whatever nullable says; zod means one.
function add(tool, type, schema, target) {
  const told = values.filter((value) => target !== "openApi3" || value.state !== null);
  const ok = told.filter((value) => type.safeParse(value).success), bad = told.filter((value) => !type.safeParse(value).success);
  (made[tool] ??= []).push({ schema, valid: ok.map((value) => JSON.stringify(value)), invalid: bad.map((value) => JSON.stringify(value)) });
}
const four = model(z, { mail: z.email(), more: { time: z.iso.time().optional(), span: z.iso.duration().optional(), code: z.base64().optional(), id: z.uuid().optional() } });
for (const target of ["draft-2020-12", "draft-7"]) add("zod 4", four, z.toJSONSchema(four, { target }), target);
const three = model(z3, { mail: z3.string().email(), more: {} });
for (const target of ["jsonSchema7", "openApi3"]) add("zod-to-json-schema", three, zodToJsonSchema(three, { target }), target);
console.log(JSON.stringify(made));
