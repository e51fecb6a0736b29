/** Causes of idle time in plain words, and their colours. */

interface Cause {
  plain: string;
  why: string;
  colour: string;
}

/** By the command's name of each cause. Colours stay apart for the colour-blind (Okabe and Ito). */
export const CAUSES: Record<string, Cause> = {
  activation: {
    plain: "waiting for activations",
    why: "An earlier stage has not made them yet.",
    colour: "#56b4e9",
  },
  gradient: {
    plain: "waiting for gradients",
    why: "A later stage has not made them yet.",
    colour: "#0072b2",
  },
  message: {
    plain: "messages under way",
    why: "The value is made, but still travels.",
    colour: "#f0e442",
  },
  order: {
    plain: "order of the row",
    why: "A later op of the row could already run.",
    colour: "#e69f00",
  },
  reduction: {
    plain: "gradient reduction",
    why: "Replicas add their gradients up.",
    colour: "#009e73",
  },
  move: {
    plain: "moving activations",
    why: "Activations are on their way to another memory, or back.",
    colour: "#cc79a7",
  },
  "step sync": {
    plain: "done, others are not",
    why: "The worker has done its part of the step.",
    colour: "#999999",
  },
  other: { plain: "other", why: "Nothing of the above.", colour: "#666666" },
};

export const causeOf = (name: string): Cause =>
  CAUSES[name] ?? { plain: name, why: "", colour: "#666666" };

export const percent = (share: number): string => `${(share * 100).toFixed(1)} %`;

/** A number with six significant digits, as the command prints it. */
export const figure = (x: number): string => String(Number(x.toPrecision(6)));

export const counted = (n: number, one: string, many: string): string =>
  `${figure(n)} ${n === 1 ? one : many}`;
