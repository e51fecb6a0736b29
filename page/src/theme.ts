/** Light and dark: as the system has it, until one chooses. */

import { button } from "./dom";

const KEY = "chimera-theme";

function stored(): string | null {
  try {
    return localStorage.getItem(KEY);
  } catch {
    return null;
  }
}

/** The button that changes between both. `onChange` draws what styles do not reach. */
export function themeButton(onChange: () => void): HTMLButtonElement {
  const root = document.documentElement;
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset["theme"] ?? (system.matches ? "dark" : "light")) === "dark";
  const theme = stored();
  if (theme === "dark" || theme === "light") root.dataset["theme"] = theme;
  const toggle = button("", () => {
    root.dataset["theme"] = isDark() ? "light" : "dark";
    try {
      localStorage.setItem(KEY, root.dataset["theme"]);
    } catch {
      // Then it holds until the page is closed.
    }
    changed();
  });
  const changed = () => {
    toggle.textContent = isDark() ? "Light" : "Dark";
    onChange();
  };
  system.addEventListener("change", changed);
  toggle.textContent = isDark() ? "Light" : "Dark";
  return toggle;
}
