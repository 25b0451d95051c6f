// The order of search results: pages for users come before decisions and sources, and a name comes before its parameters.
// Sphinx puts this file before its search.
const pages = [
  // the beginning of a page's name, points, and the kind of page that a result shows
  ["tasks/", 12, "task"],
  ["guide/", 10, "guide"],
  ["migrate/", 8, "coming from another library"],
  ["install", 10, "guide"],
  ["overview", 4, "guide"],
  ["reference/cpp/", 2, "C++ reference"],
  ["reference/python/", 2, "Python reference"],
  ["tree/README", 6, "first programs, figures, limits"],
  ["tree/CHANGELOG", -2, "changes"],
  ["decisions/", -6, "decision"],
  ["formats/", -4, "file format"],
  ["history", -6, "history of changes"],
  ["tree/", -10, "source"],
];

var Scorer = {
  score: (result) => {
    const [page, title, , description, score, , kind] = result;
    if (kind === "object") {
      if (/parameter/.test(description)) return score - 20;
      const query = (new URLSearchParams(window.location.search).get("q") ?? "").toLowerCase().trim();
      const name = title.toLowerCase();
      const isNamed = name === query || name.endsWith("::" + query) || name.endsWith("." + query);
      return isNamed ? score + (/class|struct|enum /.test(description) ? 20 : 2) : score;
    }
    const [, points, shown] = pages.find(([beginning]) => page.startsWith(beginning)) ?? ["", 0, "page"];
    // A browser cannot read the text of other pages from files, so the kind of page stands in its place.
    if (window.location.protocol === "file:") result[3] = shown;
    return score + points;
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
