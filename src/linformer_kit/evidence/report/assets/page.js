"use strict";
(function () {
  const root = document.documentElement;
  const drawings = JSON.parse(document.getElementById("drawings").textContent);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const button = document.querySelector("button.theme");
  let chosen = null; // by the reader; null follows the system

  function theme() {
    return chosen || (dark.matches ? "dark" : "light");
  }
  function colour(name) {
    return getComputedStyle(root).getPropertyValue(name).trim();
  }
  function narrow(element) {
    return element.clientWidth < 420;
  }
  // Lines of at most so many characters: a legend does not break its names itself.
  function broken(name, most) {
    const lines = [""];
    for (const word of name.split(" ")) {
      const line = lines[lines.length - 1];
      if (line && line.length + 1 + word.length > most) lines.push(word);
      else lines[lines.length - 1] = line ? line + " " + word : word;
    }
    return lines;
  }
  // The traces as this theme and width show them; a phone's legend has one name a line.
  function shown(one, element) {
    const small = narrow(element);
    const most = Math.floor(element.clientWidth / 7.5);
    let lines = 0;
    const data = one.data.map(function (trace) {
      if (trace.type === "heatmap") {
        const cell = (element.clientWidth - 150) / trace.x.length;
        const flipped = { reversescale: trace.zmid === undefined && root.dataset.theme === "dark" };
        return Object.assign({}, trace, flipped, cell < 26 ? { texttemplate: "" } : {});
      }
      const parts = small && trace.name ? broken(trace.name, most) : [trace.name];
      lines += parts.length;
      return Object.assign({}, trace, { name: parts.join("<br>") });
    });
    element.style.height = small && lines > 2 ? "calc(20rem + " + (lines - 2) * 1.1 + "rem)" : "";
    return data;
  }
  // What depends on the theme and on the width of the screen; the rest comes with the drawing.
  function dressed(layout, element) {
    const small = narrow(element);
    const axis = { gridcolor: colour("--grid"), linecolor: colour("--line"), zerolinecolor: colour("--grid") };
    const out = Object.assign({}, layout, {
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: colour("--ink"), size: small ? 11 : 12, family: getComputedStyle(document.body).fontFamily },
      margin: { l: small ? 44 : 56, r: 12, t: 10, b: small ? 40 : 48 },
      // Above the plot: below it, many names would lie over the title of the axis.
      legend: { orientation: small ? "v" : "h", y: 1.02, yanchor: "bottom", x: 0, font: { size: 11 } },
      hoverlabel: { bgcolor: colour("--card"), bordercolor: colour("--accent"), font: { color: colour("--ink") } },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: colour("--soft"), activecolor: colour("--accent") },
      dragmode: small ? false : "zoom",
    });
    for (const name of ["xaxis", "yaxis"]) out[name] = Object.assign({}, axis, layout[name]);
    return out;
  }
  const options = {
    responsive: true,
    displaylogo: false,
    showSendToCloud: false, // plotly.js would offer to upload the figure
    plotlyServerURL: "",
    typesetMath: false, // a $ in a name is a $
    modeBarButtonsToRemove: ["lasso2d", "select2d", "autoScale2d"],
  };
  function draw() {
    return Promise.all(
      Object.keys(drawings).map(function (name) {
        const element = document.getElementById("plot-" + name);
        const one = drawings[name];
        return window.Plotly.react(element, shown(one, element), dressed(one.layout, element), options);
      })
    );
  }
  function apply(to) {
    root.dataset.theme = to;
    button.textContent = to === "dark" ? "Light" : "Dark";
    button.setAttribute("aria-label", "Switch to " + button.textContent.toLowerCase() + " colours");
    return draw();
  }
  button.addEventListener("click", function () {
    chosen = theme() === "dark" ? "light" : "dark";
    apply(chosen);
  });
  dark.addEventListener("change", function () {
    apply(theme());
  });
  window.addEventListener("beforeprint", function () {
    apply("light");
  });
  window.addEventListener("afterprint", function () {
    apply(theme());
  });
  apply(theme()).then(function () {
    document.body.dataset.plots = "drawn";
  });
})();
