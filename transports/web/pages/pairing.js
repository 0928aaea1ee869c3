// Take the pairing code of the link that the server printed out of the address and the history, and fill it in if this
// page asks for it: another page leads elsewhere to sign in, or somebody has signed in already.
"use strict";
(() => {
  const fill = () => {
    const code = new URLSearchParams(location.hash.slice(1)).get("code");
    if (code === null) return;
    history.replaceState(null, "", location.pathname + location.search);
    const field = document.getElementById("code");
    if (!field) return;
    field.value = code;
    document.getElementById("about-code")?.remove(); // where the code is: it is here now
    document.getElementById("username").focus();
  };
  addEventListener("hashchange", fill);
  fill();
})();
