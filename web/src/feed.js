// The server's live feed while a page shows it: one stream, its deltas folded into one picture; connects again when cut.
import { useEffect, useState } from 'preact/hooks';
import { getJson, ofModel, streamJson } from './api.js';

const kMaxSteps = 300;
const kMaxHistory = 900;

function fold(picture, event) {
  const cells = event.cells || [...picture.cells];
  for (const [i, value] of event.changed_cells || []) cells[i] = value;
  return {
    ...picture, ...event, cells,
    steps: [...(event.cells ? [] : picture.steps), ...event.steps].slice(-kMaxSteps),
    history: [...(event.cells ? [] : picture.history), ...event.history].slice(-kMaxHistory),
    isConnected: true,
  };
}

// {picture, reason}: null while there is none, and what the server says of it.
export function useFeed(model) {
  const [picture, setPicture] = useState(null);
  const [reason, setReason] = useState(null);
  useEffect(() => {
    const controller = new AbortController();
    let timer;
    setPicture(null);
    async function connect() {
      let current = null;
      try {
        for await (const event of streamJson(ofModel('debug/live', model), null, controller.signal)) {
          if (!current && !event.cells) continue;
          if (!current) setReason(null);
          current = fold(current || {}, event);
          setPicture(current);
        }
      } catch {
        // The server has gone or asks for a key: the page says that it is not connected.
      }
      if (controller.signal.aborted) return;
      setPicture((old) => old && { ...old, isConnected: false });
      // A model that is not loaded has an empty stream.
      if (!current) await getJson(ofModel('config', model), controller.signal).then(() => setReason(null), (error) => error.status && setReason(error.message));
      if (controller.signal.aborted) return;
      timer = setTimeout(connect, 1000);
    }
    connect();
    return () => { controller.abort(); clearTimeout(timer); };
  }, [model]);
  return { picture, reason };
}
