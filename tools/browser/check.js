// What is wrong with the page as it is shown, as a list of sentences.
(() => {
  const wrong = [];
  const wide = document.scrollingElement.scrollWidth;
  if (wide > window.innerWidth) wrong.push(`it is ${wide} pixels wide, and the window ${window.innerWidth}`);
  const light = getComputedStyle(document.body).backgroundColor.match(/\d+/g).slice(0, 3).every((v) => v > 128);
  if (light === matchMedia("(prefers-color-scheme: dark)").matches) wrong.push("its ground is not as was asked for");
  let pictures = 0;
  for (const svg of document.querySelectorAll("svg")) {
    const box = svg.getBoundingClientRect();
    if (box.width === 0) continue;
    pictures++;
    const name = svg.querySelector("title")?.textContent ?? "";
    const texts = [...svg.querySelectorAll("text")].filter((t) => t.textContent.trim() !== "");
    const boxes = texts.map((t) => t.getBoundingClientRect());
    texts.forEach((t, i) => {
      const a = boxes[i], what = `in "${name}" the text "${t.textContent}"`;
      if (a.left < box.left - 1 || a.right > box.right + 1 || a.top < box.top - 1 || a.bottom > box.bottom + 1) {
        wrong.push(`${what} is cut off`);
      }
      const size = parseFloat(t.getAttribute("font-size")) * box.width / svg.viewBox.baseVal.width;
      if (size < 9.5) wrong.push(`${what} is ${size.toFixed(1)} pixels high`);
      for (let j = 0; j < i; j++) {
        const b = boxes[j];
        const x = Math.min(a.right, b.right) - Math.max(a.left, b.left);
        const y = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
        if (x > 1 && y > 5) wrong.push(`${what} lies on "${texts[j].textContent}"`);
      }
    });
  }
  if (pictures === 0) wrong.push("it has no picture");
  return wrong.slice(0, 20);
})();
