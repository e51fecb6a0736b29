// Points at the first row of each timeline until the page describes a piece, zooms, and writes its findings into the page.
(async () => {
  const seen = {};
  // The page draws in the next frame. In virtual time there are only the first ones, so timers make the others.
  const drawn = () => new Promise((resolve) => setTimeout(resolve, 50));
  await drawn();
  window.requestAnimationFrame = (act) => setTimeout(act, 1);
  for (const name of ["planned", "measured"]) {
    const canvas = document.getElementById(name), area = canvas.getBoundingClientRect();
    for (let x = 70; x < area.width && !seen[name]; x += 2) {
      canvas.dispatchEvent(new PointerEvent("pointermove", { clientX: area.left + x, clientY: area.top + 13 }));
      const text = canvas.parentElement.querySelector(".tip").textContent;
      if (text.includes("micro-batch")) seen[name] = text;
    }
    canvas.dispatchEvent(new PointerEvent("pointerleave"));
    await drawn();
    const before = canvas.toDataURL();
    const zoomed = async (what, act) => {
      act();
      await drawn();
      seen[`${name} ${what}`] = canvas.toDataURL() !== before;
    };
    const press = (key) => canvas.dispatchEvent(new KeyboardEvent("keydown", { key, cancelable: true }));
    await zoomed("zooms", () => document.getElementById("in").click());
    document.getElementById("fit").click();
    await drawn();
    seen[name + " fits"] = canvas.toDataURL() === before;
    await zoomed("follows keys", () => ["+", "ArrowRight"].forEach(press));
    press("0");
    await drawn();
  }
  document.body.dataset.seen = Object.entries(seen).map(([what, found]) => what + "=" + found).join(";");
})();
