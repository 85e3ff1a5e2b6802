// The drawer of sampling settings. An empty field is not sent: the model's default holds.
import { useState } from 'preact/hooks';
import { t } from './i18n.js';
import { local } from './storage.js';
import { IconButton } from './widgets.jsx';

const numbers = [
  ['temperature', 'temperature', 0, 2, 0.05], ['top_p', 'topP', 0, 1, 0.01], ['top_k', 'topK', 0, 200, 1], ['min_p', 'minP', 0, 1, 0.01],
  ['repetition_penalty', 'repetitionPenalty', 0.5, 2, 0.01], ['presence_penalty', 'presencePenalty', -2, 2, 0.1], ['frequency_penalty', 'frequencyPenalty', -2, 2, 0.1],
];

export function loadSampling() {
  try {
    return JSON.parse(local.getItem('spate.sampling')) || {};
  } catch {
    return {};
  }
}

export const saveSampling = (sampling) => local.setItem('spate.sampling', JSON.stringify(sampling));

export function samplingFields(sampling) {
  const fields = {};
  for (const name of [...numbers.map(([field]) => field), 'max_tokens', 'seed']) {
    if (sampling[name] !== undefined && sampling[name] !== '') fields[name] = Number(sampling[name]);
  }
  const stops = (sampling.stop || '').split('\n').filter(Boolean);
  if (stops.length) fields.stop = stops;
  if (sampling.thinking === false) fields.chat_template_kwargs = { enable_thinking: false };
  const tools = parseTools(sampling.tools);
  if (tools.value) fields.tools = tools.value;
  return fields;
}

function parseTools(text) {
  if (!text?.trim()) return {};
  try {
    return { value: JSON.parse(text) };
  } catch (error) {
    return { error: error.message };
  }
}

function NumberRow({ name, label, min, max, step, sampling, set }) {
  const value = sampling[name] ?? '';
  return (
    <div class="field">
      <label for={`s-${name}`}>{t(label)}</label>
      <input id={`s-${name}`} class="text-input number" type="number" min={min} max={max} step={step} placeholder={t('modelDefault')} value={value} onInput={(event) => set(name, event.currentTarget.value)} />
      {max !== undefined && <input type="range" aria-label={t(label)} tabIndex={-1} min={min} max={max} step={step} value={value === '' ? (min + max) / 2 : value} class={value === '' ? 'is-default' : ''} onInput={(event) => set(name, event.currentTarget.value)} />}
    </div>
  );
}

export function SamplingDrawer({ sampling, system, onChange, onSystem, onClose }) {
  const set = (name, value) => onChange({ ...sampling, [name]: value });
  const tools = parseTools(sampling.tools);
  const [isToolsTouched, setToolsTouched] = useState(false);
  return (
    <aside class="drawer" aria-label={t('settings')} onKeyDown={(event) => event.key === 'Escape' && onClose()}>
      <header><h2>{t('settings')}</h2><IconButton icon="close" label={t('close')} onClick={onClose} /></header>
      <div class="drawer-body">
        <div class="field"><label for="s-system">{t('systemPrompt')}</label><textarea id="s-system" class="text-input" rows={4} placeholder={t('systemHint')} value={system} onInput={(event) => onSystem(event.currentTarget.value)} /></div>
        {numbers.map(([name, label, min, max, step]) => <NumberRow key={name} {...{ name, label, min, max, step, sampling, set }} />)}
        <NumberRow name="max_tokens" label="maxTokens" min={1} step={1} sampling={sampling} set={set} />
        <NumberRow name="seed" label="seed" step={1} sampling={sampling} set={set} />
        <div class="field"><label for="s-stop">{t('stopTexts')} <small>{t('stopHint')}</small></label><textarea id="s-stop" class="text-input" rows={2} value={sampling.stop || ''} onInput={(event) => set('stop', event.currentTarget.value)} /></div>
        <div class="field"><label for="s-tools">{t('tools')} <small>{t('toolsHint')}</small></label><textarea id="s-tools" class="text-input mono" rows={4} spellcheck={false} value={sampling.tools || ''} onBlur={() => setToolsTouched(true)} onInput={(event) => set('tools', event.currentTarget.value)} />{isToolsTouched && tools.error && <p class="field-error" role="alert">{t('badJson', { why: tools.error })}</p>}</div>
        <label class="check"><input type="checkbox" checked={sampling.thinking !== false} onChange={(event) => set('thinking', event.currentTarget.checked)} />{t('enableThinking')}</label>
        <button type="button" class="button" onClick={() => onChange({})}>{t('reset')}</button>
      </div>
    </aside>
  );
}
