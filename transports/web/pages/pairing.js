// Fill in the pairing code of the link that the server printed, and take it out of the address and the history.
"use strict";
(() => {
  const fill = () => {
    const code = new URLSearchParams(location.hash.slice(1)).get("code");
    if (!code) return;
    history.replaceState(null, "", location.pathname + location.search);
    document.getElementById("code").value = code;
    document.getElementById("username").focus();
  };
  addEventListener("hashchange", fill);
  fill();
})();
