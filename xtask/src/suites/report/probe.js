// Points at the first row of each timeline until the page describes a piece, zooms, and writes its findings into the page.
const seen = {};
for (const name of ["planned", "measured"]) {
  const canvas = document.getElementById(name), area = canvas.getBoundingClientRect();
  for (let x = 70; x < area.width && !seen[name]; x += 2) {
    canvas.dispatchEvent(new PointerEvent("pointermove", { clientX: area.left + x, clientY: area.top + 13 }));
    const text = document.getElementById("tip").textContent;
    if (text.includes("micro-batch")) seen[name] = text;
  }
  const before = canvas.toDataURL();
  document.getElementById("in").click();
  seen[name + " zooms"] = canvas.toDataURL() !== before;
  document.getElementById("fit").click();
  seen[name + " fits"] = canvas.toDataURL() === before;
}
document.body.dataset.seen = Object.entries(seen).map(([what, found]) => what + "=" + found).join(";");
