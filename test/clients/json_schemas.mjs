// What the grammars allow ajv must find valid, and what they do not allow invalid. Argument: a file of [{schema, value, allowed}].
import { readFileSync } from "node:fs";
import { Ajv2020 } from "ajv/dist/2020.js";
import addFormats from "ajv-formats";

const cases = JSON.parse(readFileSync(process.argv[2], "utf8"));
const ajv = new Ajv2020({ strict: false, validateFormats: true, unicodeRegExp: true });
addFormats.default(ajv);
let problems = 0, allowed_cases = 0;
for (const { schema, value, allowed } of cases) {
  allowed_cases += allowed;
  if (ajv.validate(schema, value) === allowed) continue;
  ++problems;
  if (problems > 10) continue;
  console.log(`${JSON.stringify(schema)} ${allowed ? "allows" : "shuts out"} ${JSON.stringify(value)}: ${ajv.errorsText()}`);
}
console.log(`ajv: ${allowed_cases} values that the grammars allow, ${cases.length - allowed_cases} that they do not, ${problems} problems`);
process.exit(problems ? 1 : 0);
