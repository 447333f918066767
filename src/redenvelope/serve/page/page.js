"use strict";
// The page of a running campaign: it asks for /v1/campaign every two seconds and draws what it is told.

const byId = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
const SECONDS = 2;
let campaign = null;
let chosen = false; // whether somebody has moved the slider

function draw(name, attributes, text) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

function tell(name, text, className) {
  const node = document.createElement(name);
  node.textContent = text;
  if (className) node.className = className;
  return node;
}

const number = (value, digits = 3) =>
  value === null || value === undefined ? "–" : Number(value).toLocaleString("en", { maximumSignificantDigits: digits });
// In units of the budget: what is counted has no fractions.
const money = (minor, budget = campaign.budgets[0]) => {
  const digits = Math.round(Math.log10(budget.minor_units));
  return (minor / budget.minor_units).toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
};
const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`; // for a shell
const percent = (share) => `${(100 * share).toFixed(1)} %`;

function showAlerts() {
  byId("alerts").hidden = !campaign.alerts.length;
  byId("alerts").querySelector("ul").replaceChildren(
    ...campaign.alerts.map((one) => {
      const item = document.createElement("li");
      item.append(tell("strong", one.code.replaceAll("_", " ")), `: ${one.message}. What to do: ${one.remedy}.`);
      return item;
    }),
  );
}

function showMoney() {
  const nodes = [];
  for (const one of campaign.budgets) {
    const total = Math.max(one.total, 1);
    const bar = draw("svg", { viewBox: "0 0 640 28", role: "img", class: "bar", preserveAspectRatio: "none" });
    bar.setAttribute("aria-label", `${one.budget}: ${percent(one.spent / total)} spent, ${percent(one.held / total)} held`);
    let at = 0;
    for (const kind of ["spent", "held", "left"]) {
      const width = (640 * one[kind]) / total;
      bar.append(draw("rect", { x: at, y: 0, width, height: 28, class: kind }));
      at += width;
    }
    // Where spending would be by now if users cost what the budget leaves for each.
    const belief = campaign.pacing.paced ? campaign.pacing.budgets[one.budget] : undefined;
    const planned = belief && campaign.audience ? one.total * (1 - belief.users_to_come / campaign.audience) : null;
    if (planned !== null) {
      const mark = (640 * planned) / total;
      bar.append(draw("line", { x1: mark, x2: mark, y1: 0, y2: 28, class: "mark" }));
    }
    const list = document.createElement("dl");
    if (planned !== null) {
      const pair = document.createElement("div");
      pair.append(tell("dt", "planned by now (dashed)"), tell("dd", `${money(planned, one)} (${percent(planned / total)})`));
      list.append(pair);
    }
    for (const kind of ["spent", "held", "left", "total"]) {
      const pair = document.createElement("div");
      const term = tell("dt", kind);
      if (kind !== "total") term.prepend(tell("span", "", `swatch ${kind}`));
      const said = kind === "total" ? money(one[kind], one) : `${money(one[kind], one)} (${percent(one[kind] / total)})`;
      pair.append(term, tell("dd", said));
      list.append(pair);
    }
    if (campaign.budgets.length > 1) nodes.push(tell("h3", one.budget));
    nodes.push(bar, list);
  }
  byId("budgets").replaceChildren(...nodes);
  const users = campaign.audience
    ? `${campaign.users.toLocaleString("en")} of ${campaign.audience.toLocaleString("en")} users have begun (` +
      `${percent(campaign.users / campaign.audience)})`
    : `${campaign.users.toLocaleString("en")} users have begun`;
  const several = campaign.budgets.length > 1;
  const costs = campaign.budgets
    .map((one) => `${number(campaign.users ? one.spent / one.minor_units / campaign.users : 0)}${several ? ` of ${one.budget}` : ""}`)
    .join(", ");
  const plannedCosts = several
    ? campaign.plan.budgets.map((one) => `${number(one.cost)} of ${one.budget}`).join(", ")
    : number(campaign.plan.cost);
  byId("pace").textContent =
    `${users}, ${campaign.decisions.toLocaleString("en")} decisions; so far ${costs} spent and ` +
    `${number(campaign.users ? campaign.reward / campaign.users : 0)} earned per user; the plan expects ` +
    `${plannedCosts} and ${number(campaign.plan.reward)} over all of its steps.`;
}

const meanPrice = (prices, shares, budget) =>
  prices.reduce((sum, row, at) => sum + (row[budget] ?? 0) * shares[at], 0);

function whyPrice(budget, at, now) {
  const belief = campaign.pacing.paced ? campaign.pacing.budgets[budget] : undefined;
  const named = campaign.budgets.length > 1 ? `The price of ${budget} is` : "The price is";
  if (!campaign.pacing.paced) return `${named} ${number(now[at], 4)}. ${campaign.pacing.why}.`;
  if (!belief) return `${named} ${number(now[at], 4)}: not paced yet.`;
  const ratio = number(belief.cost_ratio);
  return `${named} ${number(now[at], 4)}: ${belief.why}. Users cost ${ratio === "1" ? "" : `${ratio} times `}` +
    `what the plan expects; about ${number(Math.round(belief.users_to_come), 6)} are still to come.`;
}

function showPrice() {
  const names = campaign.price.budgets;
  const now = names.map((_, budget) => meanPrice(campaign.price.prices, campaign.price.shares, budget));
  byId("why").textContent = names.map((name, at) => whyPrice(name, at, now)).join(" ");
  const curves = names.map((_, budget) => {
    const points = campaign.price_notes.map((note) => [note.at, meanPrice(note.prices, note.shares, budget)]);
    if (!points.length) points.push([campaign.at - 60000, now[budget]]);
    points.push([campaign.at, now[budget]]);
    return points;
  });
  const chart = byId("price-chart");
  const [left, right, top, bottom] = [70, 630, 12, 170];
  const first = curves[0][0][0];
  const span = Math.max(campaign.at - first, 1);
  const highest = Math.max(...curves.flat().map((point) => point[1]), 1e-9) * 1.1;
  const x = (at) => left + ((right - left) * (at - first)) / span;
  const y = (price) => bottom - ((bottom - top) * price) / highest;
  const path = (points) =>
    points.slice(1).reduce((sum, [at, price]) => `${sum}H${x(at)}V${y(price)}`, `M${x(points[0][0])} ${y(points[0][1])}`);
  const time = (at) => new Date(at).toLocaleTimeString("en", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
  chart.replaceChildren(
    draw("line", { x1: left, x2: right, y1: bottom, y2: bottom, class: "axis" }),
    draw("line", { x1: left, x2: right, y1: top, y2: top, class: "axis" }),
    draw("text", { x: left - 6, y: bottom, "text-anchor": "end" }, "0"),
    draw("text", { x: left - 6, y: top + 6, "text-anchor": "end" }, number(highest, 2)),
    draw("text", { x: left, y: bottom + 20 }, time(first)),
    draw("text", { x: right, y: bottom + 20, "text-anchor": "end" }, time(campaign.at)),
    ...curves.map((points, budget) => draw("path", { d: path(points), class: budget ? "curve other" : "curve" })),
    ...now.map((price) => draw("circle", { cx: x(campaign.at), cy: y(price), r: 5, class: "dot" })),
    ...(names.length < 2 ? [] : names.map((name, budget) =>
      draw("text", { x: right - 10, y: y(now[budget]) - 8, "text-anchor": "end" }, name))),
  );
  const said = names.length < 2 ? number(now[0], 4) : names.map((name, at) => `${name} ${number(now[at], 4)}`).join(", ");
  byId("price-said").textContent =
    `The price over time${names.length < 2 ? "" : " of each budget"}: ${campaign.price_notes.length} changes, now ${said}.`;
}

function showGiven() {
  const steps = [...new Set(campaign.tallies.map((tally) => tally.step))].sort((one, other) => one - other);
  const head = document.createElement("tr");
  head.append(tell("th", "action"), ...steps.map((step) => tell("th", `step ${step}`)), tell("th", "redeemed"), tell("th", "spent"));
  const rows = campaign.plan.actions.map((action) => {
    const own = campaign.tallies.filter((tally) => tally.action === action);
    const row = document.createElement("tr");
    const cells = steps.map((step) => {
      const all = campaign.tallies.filter((tally) => tally.step === step).reduce((sum, tally) => sum + tally.decided, 0);
      const count = own.filter((tally) => tally.step === step).reduce((sum, tally) => sum + tally.decided, 0);
      return tell("td", `${count.toLocaleString("en")} (${percent(count / Math.max(all, 1))})`);
    });
    const settled = own.reduce((sum, tally) => sum + tally.settled, 0);
    const decided = own.reduce((sum, tally) => sum + tally.decided, 0);
    const spent = own.reduce((sum, tally) => sum + tally.spent, 0);
    row.append(tell("th", action), ...cells, tell("td", decided ? percent(settled / decided) : "–"), tell("td", money(spent)));
    return row;
  });
  byId("given").replaceChildren(head, ...rows);
  const counts = Object.entries(campaign.refusals).map(([code, count]) => [code.replaceAll("_", " "), count]);
  counts.unshift(["expired", campaign.tallies.reduce((sum, tally) => sum + tally.expired, 0)]);
  byId("refused").replaceChildren(
    ...counts.map(([name, count]) => {
      const pair = document.createElement("div");
      pair.append(tell("dt", name), tell("dd", count.toLocaleString("en")));
      return pair;
    }),
  );
}

// With several budgets the frontier is along one of them, the others held.
const along = () => (campaign.budgets.length > 1 ? byId("along").value : null);
const frontier = () => (along() === null ? campaign.frontier : campaign.frontiers[along()] ?? []);

function showBudgets() {
  const select = byId("along");
  byId("along-label").hidden = select.hidden = campaign.budgets.length < 2;
  if (select.options.length === campaign.budgets.length) return;
  select.replaceChildren(...campaign.budgets.map((one) => tell("option", one.budget)));
}

function showFrontier() {
  showBudgets();
  const points = frontier();
  if (points.length < 2) return;
  const planned = campaign.plan.budgets.find((one) => one.budget === along())?.limit ?? campaign.plan.budget;
  const [left, right, top, bottom] = [70, 630, 12, 205];
  const [least, most] = [points[0].cost, points[points.length - 1].cost];
  const rewards = points.map((point) => point.reward);
  const [low, high] = [Math.min(...rewards), Math.max(...rewards)];
  const x = (cost) => left + ((right - left) * (cost - least)) / Math.max(most - least, 1e-9);
  const y = (reward) => bottom - ((bottom - top) * (reward - low)) / Math.max(high - low, 1e-9);
  const slider = byId("budget");
  slider.max = points.length - 1;
  const away = points.map((point) => Math.abs(point.budget - planned));
  if (!chosen) slider.value = away.indexOf(Math.min(...away));
  const found = points[slider.value];
  const path = points.map((point, at) => `${at ? "L" : "M"}${x(point.cost)} ${y(point.reward)}`).join("");
  byId("frontier").replaceChildren(
    draw("line", { x1: left, x2: right, y1: bottom, y2: bottom, class: "axis" }),
    draw("text", { x: left, y: bottom + 20 }, number(least)),
    draw("text", { x: right, y: bottom + 20, "text-anchor": "end" }, `${number(most)} per user`),
    draw("text", { x: left - 6, y: bottom, "text-anchor": "end" }, number(low)),
    draw("text", { x: left - 6, y: top + 6, "text-anchor": "end" }, number(high)),
    draw("line", { x1: x(found.cost), x2: x(found.cost), y1: bottom, y2: y(found.reward), class: "ghost" }),
    draw("path", { d: path, class: "curve" }),
    draw("circle", { cx: x(found.cost), cy: y(found.reward), r: 6, class: "dot" }),
  );
  byId("buys-budget").textContent = number(found.budget);
  byId("buys-cost").textContent = number(found.cost);
  byId("buys-reward").textContent = number(found.reward);
  byId("buys-price").textContent = found.price === null ? "not known" : number(found.price);
  byId("buys-total").textContent = campaign.audience
    ? `${number(found.budget * campaign.audience, 6)} buys ${number(found.reward * campaign.audience, 6)}`
    : "no audience given";
  slider.setAttribute("aria-valuetext", `${number(found.budget)} per user buys ${number(found.reward)}`);
  const name = along() === null ? "" : `${along()}=`;
  const wanted = `${name}${number(found.budget, 6).replaceAll(",", "")}`;
  byId("command").textContent = `redenvelope reprice PLAN --budget ${/^[\w.=-]+$/.test(wanted) ? wanted : quoted(wanted)} --out PLAN2`;
}

function show() {
  byId("plan").textContent =
    `plan ${campaign.plan.sha256.slice(0, 12)}, ${campaign.plan.certificate} for ${number(campaign.plan.budget)} per user, ` +
    `${campaign.mode}`;
  showAlerts();
  showMoney();
  showPrice();
  showGiven();
  showFrontier();
  document.querySelector("main").hidden = false;
}

async function look() {
  const token = sessionStorage.getItem("token");
  try {
    const answer = await fetch("/v1/campaign", { headers: token ? { authorization: `Bearer ${token}` } : {} });
    byId("access").hidden = answer.status !== 401 && answer.status !== 403;
    if (!answer.ok) {
      byId("state").textContent = (await answer.json()).message;
      return;
    }
    campaign = await answer.json();
    byId("state").textContent = `live, ${new Date(campaign.at).toLocaleTimeString("en")}`;
    show();
  } catch {
    byId("state").textContent = "the service does not answer";
  }
}

byId("access").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("token", byId("token").value);
  look();
});
byId("budget").addEventListener("input", () => {
  chosen = true;
  showFrontier();
});
byId("along").addEventListener("input", () => {
  chosen = false;
  showFrontier();
});
byId("copy").addEventListener("click", async () => {
  const text = byId("command").textContent;
  try {
    await navigator.clipboard.writeText(text);
    byId("copy").textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(byId("command")); // without permission: marked, to be copied by hand
    byId("copy").textContent = "Marked";
  }
  setTimeout(() => { byId("copy").textContent = "Copy"; }, 1500);
});
look();
setInterval(look, 1000 * SECONDS);
