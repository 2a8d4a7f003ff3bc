// Menus are <details> elements. They close on a click outside and on Escape.
const openMenu = () => document.querySelector("details.menu[open]");

function closeMenu() {
  const menu = openMenu();
  if (!menu) return false;
  const within = menu.contains(document.activeElement);
  menu.open = false;
  if (within) menu.querySelector("summary").focus();
  return true;
}

addEventListener("pointerdown", (event) => {
  const menu = openMenu();
  if (menu && !menu.contains(event.target)) menu.open = false;
});

function openDialog(id) {
  closeMenu();
  const dialog = $(id);
  dialog.showModal();
  // A frame in a notebook may be higher than the screen, so scroll to the dialog.
  if (framed) dialog.scrollIntoView({ block: "center" });
}
