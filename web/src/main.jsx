import { render } from 'preact';
import { App } from './app.jsx';
import { currentLanguage } from './i18n.js';

document.documentElement.lang = currentLanguage();
const theme = localStorage.getItem('spate.theme');
if (theme) document.documentElement.dataset.theme = theme;
render(<App />, document.getElementById('app'));
