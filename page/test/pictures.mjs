// Pictures of the page, to look at.

import { join } from "node:path";
import { answered, open } from "./browser.mjs";

const START = "";
const REFUSED = "d=4&n=8&s=1f1b&row=0/0/0 1 2 0' 4 3 1' 2' 3' 5 4' 6 5' 7 6' 7'&a=0";
const LARGE = "d=64&n=512&s=1f1b&s=chimera&a=1";
const SEVERAL = "d=8&n=16&c=0.1&s=1f1b&s=chimera&s=zb-v&a=2";

export async function pictures(out) {
  const taken = [
    ["light", START, {}], ["dark", START, { colorScheme: "dark" }],
    ["narrow", START, { viewport: { width: 400, height: 900 }, deviceScaleFactor: 2, hasTouch: true }],
    ["narrow-dark", START, { viewport: { width: 400, height: 900 }, deviceScaleFactor: 2, colorScheme: "dark" }],
    ["refused", REFUSED, {}], ["refused-dark", REFUSED, { colorScheme: "dark" }],
    ["large", LARGE, {}], ["several", SEVERAL, {}],
  ];
  for (const [name, hash, options] of taken) {
    const page = await open(hash, options);
    if (name === "refused") await page.getByRole("tab", { name: "Edit rows" }).click();
    if (name === "several") await page.getByRole("tab", { name: "Compare all" }).click();
    if (name === "dark") await page.getByRole("tab", { name: "Take away" }).click();
    await answered(page);
    await page.waitForTimeout(600);
    await page.screenshot({ path: join(out, `${name}.png`), fullPage: true });
    await page.context().close();
  }
  console.log(`pictures: ${out}`);
}
