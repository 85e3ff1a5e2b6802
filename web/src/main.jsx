import { render } from 'preact';
import { App } from './app.jsx';
import { currentLanguage } from './i18n.js';
import { local } from './storage.js';

document.documentElement.lang = currentLanguage();
const theme = local.getItem('spate.theme');
if (theme) document.documentElement.dataset.theme = theme;
render(<App />, document.getElementById('app'));
