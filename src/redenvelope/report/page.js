// What a mark stands for is its label for screen readers: show the same words to those who point at it.
(() => {
  const note = document.getElementById("note");
  const show = (event) => {
    const mark = event.target.closest('.drawing [role="graphics-symbol"][aria-label]');
    note.hidden = !mark || mark.getAttribute("aria-roledescription") === "axis";
    if (note.hidden) return;
    note.textContent = mark.getAttribute("aria-label").replace(/^Symbol legend .*? values?: /, "");
    const { width, height } = note.getBoundingClientRect();
    const left = Math.min(Math.max(8, event.clientX - width / 2), window.innerWidth - width - 8);
    const above = event.clientY - height - 14;
    note.style.left = `${left}px`;
    note.style.top = `${above > 8 ? above : event.clientY + 18}px`;
  };
  document.addEventListener("pointermove", show);
  document.addEventListener("pointerdown", show);
  document.addEventListener("scroll", () => { note.hidden = true; }, { passive: true });
})();
