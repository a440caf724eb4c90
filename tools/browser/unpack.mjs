// Unpacks the Chromium of the npm package beside this file into the folder for temporary files.
import chromium from "@sparticuz/chromium";

console.log(await chromium.executablePath());
