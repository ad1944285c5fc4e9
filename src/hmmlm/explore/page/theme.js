// Before anything is painted: the theme that was chosen here before, if any; else the system's.
try {
  const chosen = localStorage.getItem("hmmlm-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch {
  // Storage may be forbidden; then the system's theme it is.
}
