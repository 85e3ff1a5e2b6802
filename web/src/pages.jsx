// The pages, in the order of the navigation.
import { Chat } from './chat.jsx';

export const pages = [{ name: 'chat', Page: Chat }];
