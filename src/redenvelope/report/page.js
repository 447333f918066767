// What a mark or a word stands for is its description for screen readers: show the same to those who point or tab there.
(() => {
  const note = document.getElementById("note");
  const meaning = (target) => {
    const word = target.closest?.("a.term");
    if (word) return document.getElementById(word.getAttribute("aria-describedby")).textContent;
    const mark = target.closest?.('.drawing [role="graphics-symbol"][aria-label]');
    if (!mark || mark.getAttribute("aria-roledescription") === "axis") return "";
    return mark.getAttribute("aria-label").replace(/^Symbol legend .*? values?: /, "");
  };
  const show = (target, x, y) => {
    const words = meaning(target);
    note.hidden = !words;
    if (!words) return;
    note.textContent = words;
    const { width, height } = note.getBoundingClientRect();
    note.style.left = `${Math.min(Math.max(8, x - width / 2), window.innerWidth - width - 8)}px`;
    const above = y - height - 14;
    note.style.top = `${above > 8 ? above : y + 18}px`;
  };
  const pointed = (event) => show(event.target, event.clientX, event.clientY);
  document.addEventListener("pointermove", pointed);
  document.addEventListener("pointerdown", pointed);
  document.addEventListener("focusin", (event) => {
    const { left, width, top } = event.target.getBoundingClientRect();
    show(event.target, left + width / 2, top);
  });
  document.addEventListener("focusout", () => { note.hidden = true; });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") note.hidden = true; });
  document.addEventListener("scroll", () => { note.hidden = true; }, { passive: true });
})();

// A link into what is folded opens it.
(() => {
  const open = () => {
    const target = location.hash.length > 1 && document.getElementById(location.hash.slice(1));
    for (let fold = target && target.closest("details"); fold; fold = fold.parentElement.closest("details")) {
      fold.open = true;
    }
    if (target) target.scrollIntoView();
  };
  window.addEventListener("hashchange", open);
  open();
})();

// A slider shows one of the budgets that are written in the page, and where it stands on its curve.
document.querySelectorAll(".slider").forEach((slider) => {
  const input = slider.querySelector("input");
  const parts = [...slider.querySelectorAll("[data-part]")];
  const points = JSON.parse(slider.dataset.points);
  const at = (mark) => mark.getAttribute("transform").match(/translate\(([-\d.e]+)[ ,]+([-\d.e]+)\)/).slice(1).map(Number);
  // Marks of the curve, with the cost and reward that they stand for, tell how a drawing is scaled.
  const rings = [...document.querySelectorAll(`#${slider.dataset.chart} svg`)].map((drawing) => {
    const curve = [...drawing.querySelectorAll('[aria-roledescription="point"]')];
    const ends = JSON.parse(slider.dataset.ends).map(({ note, cost, reward }) => {
      const mark = curve.find((each) => each.getAttribute("aria-label") === note);
      return mark && { mark, cost, reward, place: at(mark) };
    });
    if (!ends[0] || !ends[1]) return null;
    const [low, high] = ends;
    const ring = document.createElementNS("http://www.w3.org/2000/svg", "circle");
    ring.setAttribute("class", "here");
    ring.setAttribute("r", "9");
    low.mark.parentNode.append(ring);
    const along = (from, to, start, end, value) => start + ((value - from) / (to - from)) * (end - start);
    return (point) => {
      ring.setAttribute("cx", along(low.cost, high.cost, low.place[0], high.place[0], point.cost));
      ring.setAttribute("cy", along(low.reward, high.reward, low.place[1], high.place[1], point.reward));
    };
  }).filter(Boolean);
  const show = () => {
    const point = points[Number(input.value)];
    parts.forEach((part, place) => { part.textContent = point.cells[place]; });
    input.setAttribute("aria-valuetext", point.said);
    rings.forEach((move) => move(point));
  };
  input.addEventListener("input", show);
  show();
});
