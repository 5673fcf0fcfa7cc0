// What the theme leaves to the mouse.

// Code and tables that are wider than the page are scrolled with the arrow keys: they are stops of Tab.
function reach() {
  for (const one of document.querySelectorAll("article pre, article .table-wrapper"))
    if (one.scrollWidth > one.clientWidth) one.tabIndex = 0;
    else one.removeAttribute("tabindex");
}

// Labels that open a sidebar on a narrow screen become buttons.
function press(label) {
  const box = document.getElementById(label.htmlFor), button = document.createElement("button");
  button.className = label.className;
  button.ariaLabel = box.ariaLabel;
  button.ariaExpanded = box.checked;
  button.append(...label.childNodes);
  button.addEventListener("click", () => box.click());
  box.addEventListener("change", () => (button.ariaExpanded = box.checked));
  label.replaceWith(button);
}

addEventListener("DOMContentLoaded", () => {
  document.querySelectorAll("label.nav-overlay-icon, label.toc-overlay-icon").forEach(press);
  reach();
});
addEventListener("load", reach);
addEventListener("resize", reach);
