// A canvas that fills its box, drawn again when `draw` changes, its size or the theme do.
import { useEffect, useRef } from 'preact/hooks';

export function Canvas({ draw, height, label, onMove, onLeave }) {
  const ref = useRef();
  const drawRef = useRef(draw);
  drawRef.current = draw;
  const paint = () => {
    const canvas = ref.current;
    if (!canvas) return;
    const { width, height: tall } = canvas.getBoundingClientRect();
    const scale = devicePixelRatio || 1;
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(tall * scale);
    const context = canvas.getContext('2d');
    context.scale(scale, scale);
    const style = getComputedStyle(canvas);
    drawRef.current(context, width, tall, (name) => style.getPropertyValue(`--${name}`).trim());
  };
  useEffect(paint);
  useEffect(() => {
    const observer = new ResizeObserver(paint);
    observer.observe(ref.current);
    return () => observer.disconnect();
  }, []);
  const move = (event) => {
    const box = ref.current.getBoundingClientRect();
    onMove?.(event.clientX - box.left, event.clientY - box.top, box.width, box.height);
  };
  return <canvas ref={ref} role="img" aria-label={label} style={{ height: `${height}px` }} onPointerMove={move} onPointerLeave={onLeave} />;
}
