// Calls to the server that served this page. Paths are relative, so that a proxy's prefix is kept. The key lives in
// sessionStorage and in the Authorization header, never in a URL.

import { session } from './storage.js';

const listeners = new Set();

export function apiKey() {
  return session.getItem('spate.key') || '';
}

export function setApiKey(key) {
  if (key) session.setItem('spate.key', key);
  else session.removeItem('spate.key');
}

// Called when the server asks for a key.
export function onKeyNeeded(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

export class ApiError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

async function request(path, options = {}) {
  const headers = { ...(options.headers || {}) };
  if (apiKey()) headers.Authorization = `Bearer ${apiKey()}`;
  if (options.body) headers['Content-Type'] = 'application/json';
  const response = await fetch(path, { ...options, headers, credentials: 'omit', cache: 'no-store' });
  if (response.ok) return response;
  if (response.status === 401) listeners.forEach((listener) => listener());
  let message = `${response.status} ${response.statusText}`;
  try {
    message = (await response.json()).error.message || message;
  } catch {
    // Not the API's envelope: a proxy answered. The status line says what there is to say.
  }
  throw new ApiError(message, response.status);
}

// The path of what a server of several models tells of one.
export const ofModel = (path, model) => (model ? `${path}?model=${encodeURIComponent(model)}` : path);

export async function getJson(path, signal) {
  return (await request(path, { signal })).json();
}

export async function postJson(path, body, signal) {
  return (await request(path, { method: 'POST', body: JSON.stringify(body), signal })).json();
}

// The data of each server-sent event, as text, until the stream ends.
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split('\n\n');
    rest = parts.pop();
    for (const part of parts) {
      const data = part.split('\n').filter((line) => line.startsWith('data:')).map((line) => line.slice(5).trimStart());
      if (data.length) yield data.join('\n');
    }
  }
}

// Yields the parsed chunks of a streamed answer. An error event is thrown.
export async function* streamJson(path, body, signal) {
  const response = await request(path, body ? { method: 'POST', body: JSON.stringify(body), signal } : { signal });
  for await (const data of events(response)) {
    if (data === '[DONE]') return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new ApiError(chunk.error.message || 'The stream failed.', 200);
    yield chunk;
  }
}
