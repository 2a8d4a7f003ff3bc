// Adapts the page to a notebook, where it is inside an <iframe srcdoc>. In such a frame a script may not change the address. The frame is made as high as
// its content, so a length in the page that depends on the height of the window would make the frame grow without end.
const framed = location.href.startsWith("about:srcdoc");

// Browsers allow about 200 changes of the address in 10 seconds, and a reader who holds an arrow key makes more. So changes are delayed, and only the last one
// is written.
let addressPending = 0, addressWritten = -Infinity;

function writeAddress(address, push) {
  if (framed) return;
  clearTimeout(addressPending);
  const write = () => {
    addressWritten = performance.now();
    history[push ? "pushState" : "replaceState"](null, "", address);
  };
  if (push || performance.now() - addressWritten > 100) write();
  else addressPending = setTimeout(write, 100);
}

const stageHeight = () => (framed ? 640 : Math.max(320, 0.8 * innerHeight));

function fitFrame() {
  document.documentElement.classList.toggle("framed", framed);
  let frame = null;
  try {
    // Null if the notebook forbids the page to see its frame. The frame then keeps its height, and its content scrolls.
    frame = framed ? frameElement : null;
  } catch { /* some browsers throw instead */ }
  if (!frame) return;
  const fit = () => { frame.style.height = `${Math.ceil(document.documentElement.offsetHeight)}px`; };
  new ResizeObserver(fit).observe(document.documentElement);
}
