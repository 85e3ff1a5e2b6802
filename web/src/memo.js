// A component that is made anew only when `isEqual` of its properties fails.
import { Component, createElement } from 'preact';

export function memo(render, isEqual) {
  return class extends Component {
    shouldComponentUpdate(next) { return !isEqual(this.props, next); }
    render(props) { return createElement(render, props); }
  };
}
