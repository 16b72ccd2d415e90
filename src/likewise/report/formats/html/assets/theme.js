// Which colours: those of the system unless the reader chose others. Run before anything is shown.
"use strict";
var likewiseTheme = (function () {
  const KEY = "likewise-theme";
  const CHOICES = ["auto", "light", "dark"];

  function stored() {
    try {
      const found = localStorage.getItem(KEY);
      return CHOICES.includes(found) ? found : "auto";
    } catch (error) {
      return "auto"; // storage may be forbidden for files
    }
  }

  let chosen = stored();

  function apply() {
    if (chosen === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = chosen;
  }

  function next(changed) {
    chosen = CHOICES[(CHOICES.indexOf(chosen) + 1) % CHOICES.length];
    try {
      localStorage.setItem(KEY, chosen);
    } catch (error) {
      // The choice then holds for this visit.
    }
    apply();
    changed();
  }

  function connect(button, changed) {
    const tell = () => { button.textContent = `Theme: ${chosen}`; };
    button.hidden = false;
    tell();
    button.addEventListener("click", () => next(() => { tell(); changed(); }));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", changed);
  }

  apply();
  return { connect };
})();
