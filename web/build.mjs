// npm run build: bundles src/ and writes the compressed files that the C++ build embeds, with the hash of their sources.
import { execFileSync } from 'node:child_process';
import { readFileSync, rmSync, mkdirSync, writeFileSync } from 'node:fs';
import { gzipSync } from 'node:zlib';
import { build } from 'esbuild';

const kMaxBytes = 300_000;
const here = new URL('.', import.meta.url).pathname;
const common = { bundle: true, minify: true, write: false, target: ['chrome111', 'firefox115', 'safari16.4'], logLevel: 'warning', legalComments: 'none' };
const script = await build({ ...common, entryPoints: [`${here}src/main.jsx`], format: 'esm', jsx: 'automatic', jsxImportSource: 'preact', outfile: 'app.js', metafile: true });
const style = await build({ ...common, entryPoints: [`${here}src/style.css`], outfile: 'app.css' });
// Files under an address of their own may be cached for ever.
const version = execFileSync(`${here}source_hash`, { encoding: 'utf8' }).slice(0, 12);
const files = {
  'index.html': readFileSync(`${here}src/index.html`, 'utf8').replace(/(?<=ui\/(app\.js|app\.css|icon\.svg))/g, `?${version}`),
  'icon.svg': readFileSync(`${here}src/icon.svg`),
  'app.js': script.outputFiles[0].contents,
  'app.css': style.outputFiles[0].contents,
};

rmSync(`${here}dist`, { recursive: true, force: true });
mkdirSync(`${here}dist`);
let total = 0;
for (const [name, contents] of Object.entries(files)) {
  const packed = gzipSync(contents, { level: 9 });
  total += packed.length;
  writeFileSync(`${here}dist/${name}.gz`, packed);
  console.log(`${name.padEnd(12)} ${String(contents.length).padStart(8)} bytes, ${String(packed.length).padStart(7)} compressed`);
}
if (total > kMaxBytes) throw new Error(`${total} compressed bytes, at most ${kMaxBytes}`);
writeFileSync(`${here}dist/source_hash`, execFileSync(`${here}source_hash`, { encoding: 'utf8' }));
