// The pages, in the order of the navigation.
import { Chat } from './chat.jsx';
import { Live } from './live.jsx';
import { Log } from './log.jsx';
import { Metrics } from './metrics.jsx';
import { Model } from './model.jsx';
import { Playground } from './playground.jsx';

export const pages = [
  { name: 'chat', Page: Chat }, { name: 'live', Page: Live }, { name: 'metrics', Page: Metrics }, { name: 'model', Page: Model },
  { name: 'playground', Page: Playground }, { name: 'log', Page: Log },
];
