"use strict";
(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const one = (id) => document.getElementById(id);
  const page = JSON.parse(one("page-data").textContent);
  const grouped = new Intl.NumberFormat("en-US");

  // ---- filters; a page without rows has none ----------------------------------------------------------------------------
  const filter = (form) => {
    const topic = one("filter-topic"), hour = one("filter-hour"), text = one("filter-text"), told = one("filter-told");
    const boxes = all("input[name=status]", form);
    const rows = all("tr[data-topic]");
    const pictures = all(".strip[data-topic], .latency[data-topic]");
    const words = new Map(rows.map((row) => [row, row.textContent.toLowerCase()]));

    const passes = (item, statuses, sought) => {
      const own = item.dataset;
      return (!topic.value || !own.topic || own.topic === topic.value)
        && (!hour.value || !own.hour || own.hour === hour.value)
        && (!statuses.size || !own.status || statuses.has(own.status))
        && (!sought || (words.get(item) ?? own.topic.toLowerCase()).includes(sought));
    };

    const apply = () => {
      const statuses = new Set(boxes.filter((box) => box.checked).map((box) => box.value));
      const sought = text.value.trim().toLowerCase();
      let shown = 0;
      for (const row of rows) {
        row.hidden = !passes(row, statuses, sought);
        shown += row.hidden ? 0 : 1;
      }
      // Pictures have no hour and no host: they follow the topic and, where they have one, the status.
      for (const picture of pictures) picture.hidden = !passes(picture, statuses, "");
      for (const section of all("section.table")) {
        const none = section.querySelector(".none");
        if (none) none.hidden = all("tbody tr", section).some((row) => !row.hidden);
      }
      told.textContent = `${grouped.format(shown)} of ${grouped.format(rows.length)} rows`;
      remember(statuses);
    };

    // ---- the filter in the address, so that what is seen can be pointed at ----------------------------------------------
    const remember = (statuses) => {
      const kept = new URLSearchParams();
      if (topic.value) kept.set("topic", topic.value);
      if (hour.value) kept.set("hour", hour.value);
      if (statuses.size) kept.set("status", [...statuses].join(" "));
      if (text.value.trim()) kept.set("find", text.value.trim());
      const hash = String(kept);
      if (hash || location.hash.includes("=")) history.replaceState(null, "", hash ? `#${hash}` : "#");
    };
    const recall = () => {
      if (!location.hash.includes("=")) return;
      const kept = new URLSearchParams(location.hash.slice(1));
      const choose = (select, value) => { if ([...select.options].some((option) => option.value === value)) select.value = value; };
      choose(topic, kept.get("topic") ?? "");
      choose(hour, kept.get("hour") ?? "");
      const statuses = (kept.get("status") ?? "").split(" ");
      for (const box of boxes) box.checked = statuses.includes(box.value);
      text.value = kept.get("find") ?? "";
    };

    form.hidden = false;
    for (const kind of ["input", "change"]) form.addEventListener(kind, apply);
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("reset", () => setTimeout(apply));
    recall();
    apply();
  };
  if (one("filters")) filter(one("filters"));

  // ---- sorting -------------------------------------------------------------------------------------------------------
  const compare = (a, b) => {
    const x = Number(a), y = Number(b);
    if (a !== "" && b !== "" && !Number.isNaN(x) && !Number.isNaN(y)) return x - y;
    return a < b ? -1 : a > b ? 1 : 0;
  };
  const key = (row, place) => row.cells[place].dataset.sort ?? row.cells[place].textContent;
  for (const table of all("section.table table")) {
    const body = table.tBodies[0];
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, place) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = head.textContent;
      head.replaceChildren(button);
      button.addEventListener("click", () => {
        const first = head.classList.contains("n") ? "descending" : "ascending";
        const now = head.getAttribute("aria-sort");
        const next = !now ? first : now === "ascending" ? "descending" : "ascending";
        for (const other of heads) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", next);
        const sign = next === "ascending" ? 1 : -1;
        body.append(...[...body.rows].sort((a, b) => sign * compare(key(a, place), key(b, place))));
      });
    });
  }

  // ---- what a column of a picture stands for -----------------------------------------------------------------------------
  const tip = one("tip");
  const moment = (minute) => new Date(minute * 60000).toISOString().slice(0, 16).replace("T", " ");
  const describe = (picture, row, column) => {
    const cell = picture.cells[row].find((item) => item[0] === column);
    const from = page.starts[column];
    const when = page.step === 1 ? moment(from) : `${moment(from)} to ${moment(from + page.step).slice(11)}`;
    const lines = [picture.names[row], `${when} UTC`];
    if (!cell) return [...lines, "nothing came in"].join("\n");
    const [, expected, distinct, lost = 0, twice = 0, late = 0, pending = 0] = cell;
    lines.push(`${grouped.format(distinct)} of ${grouped.format(expected)} arrived`);
    for (const [count, word] of [[lost, "lost"], [twice, "twice"], [late, "late"], [pending, "pending"]]) {
      if (count) lines.push(`${grouped.format(count)} ${word}`);
    }
    return lines.join("\n");
  };
  const show = (words, x, y) => {
    tip.textContent = words;
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - box.width - 4))}px`;
    tip.style.top = `${y + 18 + box.height > innerHeight ? Math.max(4, y - box.height - 10) : y + 18}px`;
  };
  for (const plot of all("svg[data-picture]")) {
    const picture = page.pictures[plot.dataset.picture];
    const columns = page.starts.length, count = picture.names.length;
    const view = plot.viewBox.baseVal;
    const cursor = document.createElementNS("http://www.w3.org/2000/svg", "rect");
    cursor.setAttribute("class", "cursor");
    let row = 0, column = -1;
    const hide = () => { tip.hidden = true; cursor.remove(); };
    const point = (x, y) => {
      cursor.setAttribute("x", (column * view.width) / columns);
      cursor.setAttribute("y", (row * view.height) / count);
      cursor.setAttribute("width", view.width / columns);
      cursor.setAttribute("height", view.height / count);
      plot.append(cursor);
      show(describe(picture, row, column), x, y);
    };
    plot.addEventListener("pointermove", (event) => {
      const box = plot.getBoundingClientRect();
      column = Math.min(columns - 1, Math.max(0, Math.floor(((event.clientX - box.left) / box.width) * columns)));
      row = Math.min(count - 1, Math.max(0, Math.floor(((event.clientY - box.top) / box.height) * count)));
      point(event.clientX, event.clientY);
    });
    plot.addEventListener("pointerleave", hide);
    plot.addEventListener("blur", hide);
    // Left and right go to the next column with something in it, up and down to the next host.
    plot.addEventListener("keydown", (event) => {
      const filled = picture.cells[row].map((item) => item[0]);
      if (event.key === "ArrowRight") column = filled.find((place) => place > column) ?? column;
      else if (event.key === "ArrowLeft") column = filled.findLast((place) => place < column) ?? column;
      else if (event.key === "Home") column = filled[0] ?? 0;
      else if (event.key === "End") column = filled.at(-1) ?? columns - 1;
      else if (event.key === "ArrowDown" && count > 1) row = Math.min(count - 1, row + 1);
      else if (event.key === "ArrowUp" && count > 1) row = Math.max(0, row - 1);
      else if (event.key === "Escape") { hide(); return; } else return;
      event.preventDefault();
      column = Math.max(0, column);
      const box = plot.getBoundingClientRect();
      point(box.left + ((column + 0.5) * box.width) / columns, box.top + ((row + 1) * box.height) / count);
    });
  }

  // ---- ids for other programs ---------------------------------------------------------------------------------------------
  for (const button of all("button[data-copy]")) {
    button.hidden = false;
    button.addEventListener("click", async () => {
      const ids = all(`#${button.dataset.copy} tbody tr`).filter((row) => !row.hidden).map((row) => row.querySelector("td.id").textContent);
      let done = true;
      try { await navigator.clipboard.writeText(ids.join("\n") + "\n"); } catch { done = false; }
      button.textContent = done ? `Copied ${grouped.format(ids.length)}` : "The browser refused";
      setTimeout(() => { button.textContent = "Copy ids"; }, 2500);
    });
  }
})();
