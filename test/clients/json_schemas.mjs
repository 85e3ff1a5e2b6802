// Values that ajv must find valid under their schema. Argument: a file of [{schema, value}].
import { readFileSync } from "node:fs";
import { Ajv2020 } from "ajv/dist/2020.js";
import addFormats from "ajv-formats";

const cases = JSON.parse(readFileSync(process.argv[2], "utf8"));
const ajv = new Ajv2020({ strict: false, validateFormats: true, unicodeRegExp: true });
addFormats.default(ajv);
let problems = 0;
for (const { schema, value } of cases) {
  if (ajv.validate(schema, value)) continue;
  ++problems;
  if (problems <= 10) console.log(`${JSON.stringify(schema)} allows ${JSON.stringify(value)}: ${ajv.errorsText()}`);
}
console.log(`ajv: ${cases.length} texts of the grammars, ${problems} problems`);
process.exit(problems ? 1 : 0);
