/** Tabs about the selected schedule. */

import { byId, button, el } from "./dom";

export class Tabs {
  private readonly list = el("div", { role: "tablist", "aria-label": "About the selected schedule" });
  private readonly pages: { tab: HTMLElement; page: HTMLElement }[] = [];
  private readonly title = el("h2");
  chosen = 0;

  constructor(private readonly onChoose: () => void, tabs: [string, HTMLElement][]) {
    tabs.forEach(([name, content], nth) => {
      const tab = button(name, () => this.choose(nth), {
        role: "tab", id: `tab-${nth}`, "aria-controls": `page-${nth}`,
      });
      tab.addEventListener("keydown", (event) => {
        const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
        if (!by) return;
        this.choose((nth + by + tabs.length) % tabs.length);
        this.pages[this.chosen]?.tab.focus();
      });
      const page = el("div", { role: "tabpanel", id: `page-${nth}`, "aria-labelledby": `tab-${nth}`, class: "page" }, content);
      this.list.append(tab);
      this.pages.push({ tab, page });
    });
    byId("details").append(this.title, this.list, ...this.pages.map(({ page }) => page));
    this.choose(0);
  }

  /** Names the schedule that they are about. */
  name(label: string): void {
    this.title.textContent = label;
  }

  choose(nth: number): void {
    this.chosen = nth;
    this.pages.forEach(({ tab, page }, i) => {
      tab.setAttribute("aria-selected", String(i === nth));
      tab.tabIndex = i === nth ? 0 : -1;
      page.hidden = i !== nth;
    });
    this.onChoose();
  }
}
