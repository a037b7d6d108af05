"use strict";
// Replaces changed parts of the page every two seconds. Opened details stay open.

const at = (id) => document.getElementById(id);

function replace(old, fresh) {
  const [image, drawn] = [old.querySelector("img"), fresh.querySelector("img")];
  if (image && drawn) {
    if (image.getAttribute("src") !== drawn.getAttribute("src")) image.src = drawn.getAttribute("src"); // without a flicker
    return;
  }
  const open = [...old.querySelectorAll("details")].map((one) => one.open);
  fresh.querySelectorAll("details").forEach((one, i) => { one.open = open[i] ?? false; });
  if (old.innerHTML !== fresh.innerHTML) old.replaceChildren(...document.adoptNode(fresh).childNodes);
}

async function follow() {
  try {
    if (document.hidden) return;
    const answer = await fetch("/", { cache: "no-store" }), text = await answer.text();
    if (!answer.ok) throw new Error(text);
    const fresh = new DOMParser().parseFromString(text, "text/html");
    for (const part of fresh.querySelectorAll("section")) replace(at(part.id), part);
  } catch (error) {
    at("status").textContent = `no update: ${error.message}`;
  } finally {
    setTimeout(follow, 2000);
  }
}

setTimeout(follow, 2000);
